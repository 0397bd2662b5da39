"""The statements of the attention loop: what each reads, writes and is.

`SOURCE` has the 15 statements that schedules speak of, as `lowering/pipelined/kernel.py` runs them; where another kernel
does it otherwise, its folder has a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

Macro = Literal["MMA0", "Softmax", "Rescale", "MMA1"]
StatementKind = Literal["load", "product", "vector"]


@dataclass(frozen=True)
class Statement:
    """One statement of the loop body.

    `reads` and `writes` name buffers of the kernel. A `load` is asynchronous and fills a ring buffer; a `product`
    is a wgmma that may be in flight after it was issued; a `vector` statement is done when the next one starts.
    `columns` are the first column and the end of a chunk, None for a whole statement. `code` names what it computes,
    where that is not what `SOURCE`'s statement of this name does: the interpreter has it by that name.
    """

    name: str
    macro: Macro
    kind: StatementKind
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    formula: str
    columns: tuple[int, int] | None = None
    code: str = ""


@dataclass(frozen=True)
class Table:
    """The statements of one kernel's loop, in source order.

    Where statements are split into chunks (`exp.0`), buffers are too: `acc_s[0:48]`. Schedules speak of the statements
    of `SOURCE`: `fused` has those that are part of another one here, `moved` those that run right before another one,
    wherever the schedule has them.
    """

    statements: tuple[Statement, ...]
    fused: Mapping[str, str] = field(default_factory=dict, hash=False)
    moved: Mapping[str, str] = field(default_factory=dict, hash=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(statement.name for statement in self.statements)

    @cached_property
    def number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def by_name(self) -> dict[str, Statement]:
        return {statement.name: statement for statement in self.statements}

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The buffers that the code after the loop reads."""
        written = dict.fromkeys(buffer for statement in self.statements for buffer in statement.writes)
        return tuple(buffer for buffer in written if whole(buffer) in RESULTS)


def statement(
    macro: Macro, kind: StatementKind, name: str, reads: str, writes: str, formula: str, code: str = ""
) -> Statement:
    """One line of a table; buffers are separated by blanks."""
    return Statement(name, macro, kind, tuple(reads.split()), tuple(writes.split()), formula, code=code)


SOURCE = Table(
    (
        statement("MMA0", "load", "load_k", "K", "K_shared", "K_shared = K[k]"),
        statement("MMA0", "vector", "mask", "", "acc_s", "acc_s = 0, or -inf where masked"),
        statement("MMA0", "product", "mma0", "Q_shared K_shared acc_s", "acc_s", "acc_s += Q_shared @ K_shared^T"),
        statement("Softmax", "vector", "max_prev", "scores_max", "scores_max_prev", "scores_max_prev = scores_max"),
        statement("Softmax", "vector", "max_init", "", "scores_max", "scores_max = -inf"),
        statement("Softmax", "vector", "row_max", "acc_s scores_max", "scores_max", "scores_max = max_j acc_s"),
        statement(
            "Softmax",
            "vector",
            "max_merge",
            "scores_max scores_max_prev",
            "scores_max",
            "scores_max = max(scores_max, scores_max_prev)",
        ),
        statement(
            "Softmax",
            "vector",
            "scale",
            "scores_max_prev scores_max",
            "scores_scale",
            "scores_scale = exp2(scale (scores_max_prev - scores_max))",
        ),
        statement("Softmax", "vector", "exp", "acc_s scores_max", "acc_s", "acc_s = exp2(scale (acc_s - scores_max))"),
        statement("Softmax", "vector", "row_sum", "acc_s", "scores_sum", "scores_sum = sum_j acc_s"),
        statement(
            "Softmax",
            "vector",
            "logsum",
            "logsum scores_scale scores_sum",
            "logsum",
            "logsum = logsum scores_scale + scores_sum",
        ),
        statement("Softmax", "vector", "cast", "acc_s", "acc_s_cast", "acc_s_cast = acc_s"),
        statement("Rescale", "vector", "rescale", "acc_o scores_scale", "acc_o", "acc_o *= scores_scale"),
        statement("MMA1", "load", "load_v", "V", "V_shared", "V_shared = V[k]"),
        statement("MMA1", "product", "mma1", "acc_s_cast V_shared acc_o", "acc_o", "acc_o += acc_s_cast @ V_shared"),
    )
)

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
READER: dict[str, str] = {RING[buffer]: s.name for s in SOURCE.statements for buffer in s.reads if buffer in RING}
LOAD_OF: dict[str, str] = {product: load for load, product in READER.items()}

# The statements that can be split, and the buffers whose columns their chunks cut.
_SCORES, _OUTPUT = ("acc_s", "acc_s_cast"), ("acc_o",)
SPLITTABLE: dict[str, tuple[str, ...]] = {"exp": _SCORES, "row_sum": _SCORES, "cast": _SCORES, "rescale": _OUTPUT}


def whole(name: str) -> str:
    """The statement or buffer that a chunk belongs to: `exp` of exp.0, `acc_s` of acc_s[0:48]."""
    return name.partition(".")[0].partition("[")[0]


def chunk_names(statement: str, columns: tuple[int, ...] | None) -> tuple[str, ...]:
    """The names of a statement's chunks, or its own if it is whole."""
    return (statement,) if columns is None else tuple(f"{statement}.{index}" for index in range(len(columns)))


def chunk_range(columns: tuple[int, ...], index: int) -> tuple[int, int]:
    """(first column, end) of a chunk."""
    edges = (0, *accumulate(columns))
    return edges[index], edges[index + 1]


def split_table(table: Table, split: dict[str, tuple[int, ...]]) -> Table:
    """The table with the statements of `split` cut into chunks of these columns."""
    segments: dict[str, list[tuple[int, int]]] = {}
    for buffers in (_SCORES, _OUTPUT):
        ends = {end for name, widths in split.items() if SPLITTABLE[name] == buffers for end in accumulate(widths)}
        cuts = [0, *sorted(ends)]
        segments |= {buffer: list(pairwise(cuts)) for buffer in buffers if ends}

    def touched(buffers: tuple[str, ...], columns: tuple[int, int] | None) -> Iterator[str]:
        for buffer in buffers:
            if buffer not in segments:
                yield buffer
            for first, end in segments.get(buffer, ()):
                if columns is None or (columns[0] <= first and end <= columns[1]):
                    yield f"{buffer}[{first}:{end}]"

    statements: list[Statement] = []
    for s in table.statements:
        widths = split.get(s.name)
        for index, name in enumerate(chunk_names(s.name, widths)):
            columns = chunk_range(widths, index) if widths else None
            # A row sum adds up: the first chunk scales the sum so far, the others only add to it.
            reads = tuple(b for b in s.reads if b != "scores_scale") if s.name == "row_sum" and index else s.reads
            statements.append(
                replace(
                    s,
                    name=name,
                    columns=columns,
                    reads=tuple(touched(reads, columns)),
                    writes=tuple(touched(s.writes, columns)),
                    formula=s.formula + (f", columns {columns[0]} to {columns[1]}" if columns else ""),
                )
            )
    return replace(table, statements=tuple(statements))
