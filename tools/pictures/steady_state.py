"""Two iterations of a Program's steady state say row by row who runs what, and which loads and products are under way.

Iterations of the steady state differ only in the block, so an operation has the same place in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tl_attention.program.program import Operation, Program

SHOWN = 2


@dataclass(frozen=True)
class Row:
    """A row is one operation of the threads that compute, or successive vector statements of one KV block."""

    iteration: int
    operations: tuple[Operation, ...]
    block: int | None  # counted from the block of iteration t; None where the operation concerns none

    @property
    def kind(self) -> str:
        return self.operations[0].kind


@dataclass(frozen=True)
class Filled:
    """A KV block fills a buffer of a ring."""

    load: str
    slot: int
    block: int
    # Rows: it is on its way from `start` on, read from `ready` on, and released at `end`.
    start: int
    ready: int
    end: int


@dataclass(frozen=True)
class InFlight:
    """A product of a KV block is in flight: it is issued at row `start` and waited for at row `end`."""

    product: str
    block: int
    start: int
    end: int


@dataclass(frozen=True)
class Iterations:
    """The steady state of a Program is shown in its iterations t and t + 1, which are the tuple `rows`."""

    program: Program

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for t in range(SHOWN) for row in self._rows_of(t))

    @cached_property
    def filled(self) -> tuple[Filled, ...]:
        """Returns what lies in the buffers while these rows run, ring by ring."""
        found = []
        for load, buffers in self.program.buffers.items():
            for block in self._blocks():
                ready, end = self._row("wait", load, block), self._row("release", load, block)
                # A producer loads as soon as the buffer is free; threads that load themselves do so at a row of theirs.
                start = self._row("release", load, block - buffers)
                if load not in self.program.loads:
                    start = self._row("issue", load, block)
                found.append(Filled(load, block % buffers, block, start, ready, end))
        return tuple(one for one in found if self._is_seen(one.start, one.end))

    @cached_property
    def in_flight(self) -> tuple[InFlight, ...]:
        """Returns the products that are in flight while these rows run."""
        found = [
            InFlight(product, block, self._row("issue", product, block), self._row("wait", product, block))
            for product in self.program.table.products
            for block in self._blocks()
        ]
        return tuple(one for one in found if self._is_seen(one.start, one.end))

    @cached_property
    def _steady(self) -> tuple[tuple[Operation, ...], ...]:
        """Returns the operations of one iteration, row by row."""
        rows: list[list[Operation]] = []
        for op in self.program.phases.steady.operations:
            if rows and op.kind == "run" and (rows[-1][0].kind, rows[-1][0].lag) == ("run", op.lag):
                rows[-1].append(op)
            else:
                rows.append([op])
        return tuple(map(tuple, rows))

    def _rows_of(self, t: int) -> list[Row]:
        names = self.program.table.by_name
        return [
            Row(
                t,
                tuple(op._replace(lag=op.lag - t) for op in ops),
                t - ops[0].lag if ops[0].statement in names else None,
            )
            for ops in self._steady
        ]

    def _row(self, kind: str, statement: str, block: int) -> int:
        """Returns the row in which an operation is done for a block; it may lie before or behind the shown rows."""
        row, lag = next(
            (row, op.lag)
            for row, ops in enumerate(self._steady)
            for op in ops
            if (op.kind, op.statement) == (kind, statement)
        )
        return (block + lag) * len(self._steady) + row

    def _blocks(self) -> range:
        return range(-2 * self.program.span, SHOWN + 2 * self.program.span)

    def _is_seen(self, start: int, end: int) -> bool:
        return start < len(self.rows) and end >= 0
