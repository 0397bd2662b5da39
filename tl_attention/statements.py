"""The statements of the attention loop: what each reads, writes and is. One table for each kernel.

`SOURCE` has the 15 statements that schedules speak of, and describes `kernel/pipelined.py`; `kernel/trace.py` reads the
same facts off that kernel as TileLang traced it, and a test holds the two together. `WARP_SPECIALIZED` describes
`kernel/warp_specialized.py`, where three of the 15 are part of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class Statement:
    """One statement of the loop body.

    `reads` and `writes` name buffers of the kernel. A `load` is asynchronous and fills a ring buffer; a `product`
    is a wgmma that may be in flight after it was issued; a `vector` statement is done when the next one starts.
    """

    name: str
    macro: Literal["MMA0", "Softmax", "Rescale", "MMA1"]
    kind: Literal["load", "product", "vector"]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    formula: str


@dataclass(frozen=True)
class Table:
    """The statements of one kernel's loop, in source order."""

    statements: tuple[Statement, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(statement.name for statement in self.statements)

    @cached_property
    def number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def by_name(self) -> dict[str, Statement]:
        return {statement.name: statement for statement in self.statements}


def _statement(macro: str, kind: str, name: str, reads: str, writes: str, formula: str) -> Statement:
    return Statement(name, macro, kind, tuple(reads.split()), tuple(writes.split()), formula)  # type: ignore[arg-type]


SOURCE = Table((
    _statement("MMA0", "load", "load_k", "K", "K_shared", "K_shared = K[k]"),
    _statement("MMA0", "vector", "mask", "", "acc_s", "acc_s = 0, or -inf where masked"),
    _statement("MMA0", "product", "mma0", "Q_shared K_shared acc_s", "acc_s", "acc_s += Q_shared @ K_shared^T"),
    _statement("Softmax", "vector", "max_prev", "scores_max", "scores_max_prev", "scores_max_prev = scores_max"),
    _statement("Softmax", "vector", "max_init", "", "scores_max", "scores_max = -inf"),
    _statement("Softmax", "vector", "row_max", "acc_s scores_max", "scores_max", "scores_max = max_j acc_s"),
    _statement(
        "Softmax", "vector", "max_merge", "scores_max scores_max_prev", "scores_max",
        "scores_max = max(scores_max, scores_max_prev)",
    ),
    _statement(
        "Softmax", "vector", "scale", "scores_max_prev scores_max", "scores_scale",
        "scores_scale = exp2(scale (scores_max_prev - scores_max))",
    ),
    _statement("Softmax", "vector", "exp", "acc_s scores_max", "acc_s", "acc_s = exp2(scale (acc_s - scores_max))"),
    _statement("Softmax", "vector", "row_sum", "acc_s", "scores_sum", "scores_sum = sum_j acc_s"),
    _statement(
        "Softmax", "vector", "logsum", "logsum scores_scale scores_sum", "logsum",
        "logsum = logsum scores_scale + scores_sum",
    ),
    _statement("Softmax", "vector", "cast", "acc_s", "acc_s_cast", "acc_s_cast = acc_s"),
    _statement("Rescale", "vector", "rescale", "acc_o scores_scale", "acc_o", "acc_o *= scores_scale"),
    _statement("MMA1", "load", "load_v", "V", "V_shared", "V_shared = V[k]"),
    _statement("MMA1", "product", "mma1", "acc_s_cast V_shared acc_o", "acc_o", "acc_o += acc_s_cast @ V_shared"),
))

# mma0 clears its accumulator, so the mask comes after it, and only for blocks at a boundary; row_max starts from the
# maximum so far.
_CHANGED = {
    "mma0": _statement("MMA0", "product", "mma0", "Q_shared K_shared", "acc_s", "acc_s = Q_shared @ K_shared^T"),
    "mask": _statement("MMA0", "vector", "mask", "acc_s", "acc_s", "acc_s = -inf where masked"),
    "row_max": _statement(
        "Softmax", "vector", "row_max", "acc_s scores_max", "scores_max", "scores_max = max(scores_max, max_j acc_s)"
    ),
}
# Statement -> the one that it is part of, or runs right before, in the warp-specialised kernel.
FUSED = {"max_init": "row_max", "max_merge": "row_max"}
MASK_BEFORE = "row_max"
WARP_SPECIALIZED = Table(tuple(
    _CHANGED.get(name, SOURCE.by_name[name])
    for name in ("load_k", "mma0", "mask", *(n for n in SOURCE.names[3:] if n not in FUSED))
))

NAMES: tuple[str, ...] = SOURCE.names
NUMBER: dict[str, int] = SOURCE.number
BY_NAME: dict[str, Statement] = SOURCE.by_name
LOADS: tuple[str, ...] = tuple(s.name for s in SOURCE.statements if s.kind == "load")
PRODUCTS: tuple[str, ...] = tuple(s.name for s in SOURCE.statements if s.kind == "product")

# Buffers with several slots, by the load that fills them. Everything else in the table has exactly one version.
RING: dict[str, str] = {BY_NAME[load].writes[0]: load for load in LOADS}
# Never written in the loop.
INPUTS: frozenset[str] = frozenset({"Q_shared", "K", "V"})
# What the code after the loop reads.
RESULTS: tuple[str, ...] = ("acc_o", "logsum")
# The load that a product's shared-memory operand comes from.
READER: dict[str, str] = {
    RING[buffer]: s.name for s in SOURCE.statements for buffer in s.reads if buffer in RING
}
