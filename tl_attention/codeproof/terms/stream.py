"""A process of a run with terms is read as events, like one with numbers; marks of loops stay among the events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tl_attention.codeproof.read.copies import HAND_OVER
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.thread_slice import Reading, ThreadSlice
from tl_attention.codeproof.run.wgmma_groups import WgmmaGroups
from tl_attention.codeproof.terms.choices import least
from tl_attention.codeproof.terms.run import BRANCH, END, LOOP, MARKS, OTHERWISE, TILES, TermRun
from tl_attention.codeproof.terms.term import Term, holds, term
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.warpgroup import ROWS
from tl_attention.program.events import Event


class TermStream(Stream):
    """A TermStream turns what a process was seen doing with terms into events; marks of loops stay among them."""

    run: TermRun
    # How many rows are left from the process's first one on.
    left: Callable[[], Any]

    def __init__(self, run: TermRun, own: np.ndarray, who: str, reading: Reading):
        super().__init__(run, own, who, reading)
        # The products before each condition or loop that is open, or behind the first side of a condition.
        self.ways: list[WgmmaGroups] = []

    def _event(self, part: ThreadSlice) -> Any:
        """Yields the events of a part, with the line in the place of a step, which code does not show."""
        yield from (replace(event, step=part.line) for event in self._events_of(part))

    def _events_of(self, part: ThreadSlice) -> Any:
        kind = part.seen.kind
        if kind in MARKS:
            if part.count != len(self.own):
                raise Unsafe(f"line {part.line}: some of the threads of {self.who} have a {kind} of unknown sizes")
            self._mark(kind, part.line)
            index, value = (part.seen.values.get(name, 0) for name in ("index", "value"))
            yield Event(kind, index=index, value=value)
        elif kind in ("rows of output", "rows of lse"):
            self.products.check_settled(part)
            yield self._rows(part)
        elif kind == HAND_OVER and "entry" in part.seen.values:
            place = part.one("entry"), part.one("head")
            yield from (replace(event, place=place) for event in super()._event(part))
        else:
            yield from super()._event(part)

    def _mark(self, kind: str, line: int) -> None:
        """Raises Unsafe unless products and stores are in flight alike on all ways through a condition or a loop."""
        if self.stores or self.boxes:
            raise Unsafe(f"line {line}: {self.who} has a store that is not committed, or a box that is not loaded")
        if kind in (LOOP, BRANCH, TILES):
            self.ways.append(self.products.copy())
        elif kind == OTHERWISE:
            self.ways[-1], self.products = self.products, self.ways[-1]
        elif kind == END:
            self.products.join(self.ways.pop(), line)

    def _moved(self, parts: list[ThreadSlice]) -> Any:
        events = [self._elements(parts)] if parts[0].seen.kind == "output" else super()._moved(parts)
        yield from (replace(event, step=parts[0].line) for event in events)

    def _elements(self, parts: list[ThreadSlice]) -> Event:
        """Returns the event of rows whose elements threads store each by itself, where the row is there.

        Raises Unsafe unless they are all elements of a warpgroup's rows, each once.
        """
        seen, line = parts[0].seen, parts[0].line
        tensor = self.reading.tensors[seen.name]
        stride = term(tensor.row_stride)
        stored = [
            (term(element), term(inside), part.seen.values["elements"])
            for part in parts
            for element, inside in zip(
                part.all_of("element"), part.all_of("inside") if "inside" in part.seen.values else [1] * part.count
            )
        ]
        first = min((element for element, _, _ in stored), key=lambda element: element.parts.get((), 0))
        places, mixed = set[tuple[int, int]](), list[int]()
        rows: dict[int, Term] = {}
        for element, inside, width in stored:
            row, column = _within(element - first, stride)
            if row.constant is None or column.constant is None:
                raise Unsafe(f"line {line} stores an element {element - first} behind the first, which is in no row")
            places |= {(row.constant, column.constant + n) for n in range(width)}
            if not rows.setdefault(row.constant, inside).same(inside):
                mixed.append(row.constant)
        whole = {(row, column) for row in rows for column in range(tensor.columns)}
        if places != whole or len(stored) * stored[0][2] != len(whole):
            raise Unsafe(f"line {line}: the output's elements are not those of whole rows, each once")
        if mixed:
            raise Unsafe(f"line {line}: some elements of row {mixed[0]} are stored where others are not")
        facts = self.run.facts
        with facts.assuming(*self.run.tiles.there):
            left: Any = self.left()
            for row in sorted({*range(ROWS), *rows}):
                facts.show_equal(f"line {line}: where row {row} is stored", rows.get(row, 0), holds(left - 1 - row))
            left = facts.simpler(least(left, ROWS))
        return Event("output", value=left, place=(first, left, tensor.row_stride, 0))

    def _rows(self, part: ThreadSlice) -> Event:
        """Returns the event of rows that are stored; its place says where, as `placed` does."""
        kind, values = {"rows of output": "output", "rows of lse": "lse"}[part.seen.kind], part.seen.values
        apart = (
            part.one("row_stride") if kind == "output" else 1,
            part.one("head_stride") if "head_stride" in values else 0,
        )
        place = part.one("element"), part.one("rows"), *apart
        return Event(kind, self._name_of(part), part.one("index"), place=place)


def _within(element: Term, stride: Term) -> tuple[Term, Term]:
    """Returns (row, column) of an element, by its form where the rows' stride is not known."""
    if stride.constant is not None:
        return divmod(element, stride)
    ((monomial, factor),) = stride.parts.items()
    row = term(element.parts.get(monomial, 0) // factor)
    return row, element - row * stride
