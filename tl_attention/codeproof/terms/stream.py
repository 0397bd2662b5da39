"""A process of a run with terms is read as events, like one with numbers; marks of loops stay among the events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tl_attention.codeproof.read.copies import HAND_OVER
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.thread_slice import Reading, ThreadSlice
from tl_attention.codeproof.run.tile_copies import TileCopies, alike
from tl_attention.codeproof.run.wgmma_groups import WgmmaGroups
from tl_attention.codeproof.terms.comparison import Inside
from tl_attention.codeproof.terms.run import BRANCH, END, LOOP, MARKS, OTHERWISE, TILES, TermRun
from tl_attention.codeproof.terms.spread import Spread, numbers, of_threads
from tl_attention.codeproof.terms.term import CONSTANT, Term, known
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.warpgroup import ROWS, WARPGROUP
from tl_attention.program.events import Event


class TermStream(Stream):
    """A TermStream turns what a process was seen doing with terms into events; marks of loops stay among them."""

    run: TermRun

    def __init__(self, run: TermRun, own: np.ndarray, who: str, reading: Reading):
        super().__init__(run, own, who, reading)
        self.moved = TermCopies(run, reading, max(len(own) // WARPGROUP, 1))
        # Of each condition and loop that is open: the condition, and the products before it, or behind its first side.
        self.ways: list[tuple[Any, WgmmaGroups]] = []

    def _event(self, part: ThreadSlice) -> Any:
        """Yields the events of a part, with the line in the place of a step, which code does not show."""
        yield from (replace(event, step=part.line) for event in self._events_of(part))

    def _events_of(self, part: ThreadSlice) -> Any:
        kind = part.seen.kind
        if kind == "arithmetic":
            self._check_always(part)
        if kind in MARKS:
            if part.count != len(self.own):
                raise Unsafe(f"line {part.line}: some of the threads of {self.who} have a {kind} of unknown sizes")
            index, value = (part.seen.values.get(name, 0) for name in ("index", "value"))
            self._mark(kind, value, part.line)
            yield Event(kind, index=index, value=value)
        elif kind in ("rows of output", "rows of lse"):
            self.products.check_settled(part)
            yield self._rows(part)
        elif kind == HAND_OVER and "entry" in part.seen.values:
            place = part.one("entry"), part.one("head")
            yield from (replace(event, place=place) for event in super()._event(part))
        else:
            yield from super()._event(part)

    def _mark(self, kind: str, value: Any, line: int) -> None:
        """Raises Unsafe unless products and stores are in flight alike on all ways through a condition or a loop."""
        if self.stores or self.boxes:
            raise Unsafe(f"line {line}: {self.who} has a store that is not committed, or a box that is not loaded")
        if kind in (LOOP, BRANCH, TILES):
            self.ways.append((value if kind == BRANCH else None, self.products.copy()))
        elif kind == OTHERWISE:
            condition, before = self.ways.pop()
            self.ways.append((condition, self.products))
            self.products = before
        elif kind == END:
            self.products.join(self.ways.pop()[1], line)

    def _check_always(self, part: ThreadSlice) -> None:
        """Raises Unsafe for arithmetic under a condition, unless it is with a number of a head, which counts in some tiles."""
        conditions = [condition for condition, _ in self.ways if condition is not None]
        if conditions and all(map(part.seen.registers.touched.isdisjoint, self.of_head.values())):
            raise Unsafe(f"line {part.line} computes where {conditions[-1]}, and not elsewhere")

    def _moved(self, parts: list[ThreadSlice]) -> Any:
        yield from (replace(event, step=parts[0].line) for event in super()._moved(parts))

    def _rows(self, part: ThreadSlice) -> Event:
        """Returns the event of rows that are stored; its place says where, as `placed` does."""
        kind, values = {"rows of output": "output", "rows of lse": "lse"}[part.seen.kind], part.seen.values
        apart = (
            part.one("row_stride") if kind == "output" else 1,
            part.one("head_stride") if "head_stride" in values else 0,
        )
        place = part.one("element"), part.one("rows"), *apart
        return Event(kind, self._name_of(part), part.one("index"), place=place)


class TermCopies(TileCopies):
    """TermCopies are TileCopies whose elements and rows may be Terms; which rows are there is Inside."""

    def __init__(self, run: TermRun, reading: Reading, warpgroups: int):
        super().__init__(run, reading)
        self.warpgroups = warpgroups

    def rows(self, inside: Sequence[Any], line: int) -> Inside:
        return Inside(tuple(inside))

    def _output(self, parts: Sequence[ThreadSlice]) -> Event:
        """Returns the event of rows whose elements threads store each by itself, where the row is there.

        Raises Unsafe unless they are all elements of the warpgroups' rows, each once.
        """
        seen, line = parts[0].seen, parts[0].line
        tensor, width = self.reading.tensors[seen.name], self._width(parts)
        first = known(of_threads(parts[0].all_of("element"), parts[0].count)[0])
        places, stored = [], dict[int, Any]()
        for part in parts:
            row, column = _within(of_threads(part.all_of("element"), part.count) - first, tensor.row_stride, line)
            places += [row * tensor.columns + column + n for n in range(width)]
            for (at,), inside in alike(part.all_of("inside") if "inside" in part.seen.values else 1, row):
                if stored.setdefault(at, inside) != inside:
                    raise Unsafe(f"line {line}: some elements of row {at} are stored where others are not")
        found = np.sort(np.concatenate(places))
        count = self.warpgroups * ROWS
        if len(found) != count * tensor.columns or (found != np.arange(len(found))).any():
            raise Unsafe(f"line {line}: the output's elements are not those of whole rows, each once")
        rows: Any = self.rows([stored[row] for row in range(count)], line)
        return Event("output", value=rows, place=(first, rows, tensor.row_stride, 0))


def _within(apart: Any, stride: Any, line: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (rows, columns) of elements so far behind the first, by their form where the rows' stride is not known."""
    row: Any = 0
    if isinstance(stride, Term):
        ((monomial, factor),) = stride.parts.items()
        row = apart.parts.get(monomial, np.zeros(len(apart), dtype=np.int64)) // factor
        apart = apart - Spread({CONSTANT: row}) * stride
    found = numbers(apart)
    if isinstance(found, Spread):
        raise Unsafe(f"line {line} stores an element {found[0]} behind the first, which is in no row")
    return (row, found) if isinstance(stride, Term) else np.divmod(found, stride)
