"""The 15 statements of the attention loop: what each reads, writes and is.

The table describes the kernel in `kernel/attention.py`; `kernel/trace.py` reads the same facts off the
kernel as TileLang traced it, and a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def _statement(macro: str, kind: str, name: str, reads: str, writes: str, formula: str) -> Statement:
    return Statement(name, macro, kind, tuple(reads.split()), tuple(writes.split()), formula)  # type: ignore[arg-type]


STATEMENTS: tuple[Statement, ...] = (
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
)

NAMES: tuple[str, ...] = tuple(statement.name for statement in STATEMENTS)
NUMBER: dict[str, int] = {name: number for number, name in enumerate(NAMES)}
BY_NAME: dict[str, Statement] = {statement.name: statement for statement in STATEMENTS}
LOADS: tuple[str, ...] = tuple(s.name for s in STATEMENTS if s.kind == "load")
PRODUCTS: tuple[str, ...] = tuple(s.name for s in STATEMENTS if s.kind == "product")

# Buffers with several slots, by the load that fills them. Everything else in the table has exactly one version.
RING: dict[str, str] = {BY_NAME[load].writes[0]: load for load in LOADS}
# Never written in the loop.
INPUTS: frozenset[str] = frozenset({"Q_shared", "K", "V"})
# What the code after the loop reads.
RESULTS: tuple[str, ...] = ("acc_o", "logsum")
# The load that a product's shared-memory operand comes from.
READER: dict[str, str] = {
    RING[buffer]: s.name for s in STATEMENTS for buffer in s.reads if buffer in RING
}
