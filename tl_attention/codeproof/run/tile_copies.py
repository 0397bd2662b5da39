"""This module reads what one process moves: the boxes, copies and stores of one tile together become one event.

Each event fills, or reads, one slot, all of it and each element once, each 16 bytes in their place; the event is of
rows that follow each other in one head.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tl_attention.codeproof.read.copies import PUT, VECTOR
from tl_attention.codeproof.run.run import Observation, Run
from tl_attention.codeproof.run.thread_slice import Reading, ThreadSlice
from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.terms.comparison import RowConditions
from tl_attention.codeproof.terms.spread import Spread, broadcast, numbers, split_common
from tl_attention.codeproof.terms.term import CONSTANT, Term, as_number, term
from tl_attention.codeproof.tiles.tiles import Tile
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.warpgroup import ROWS
from tl_attention.program.events import Event

# A box of numbers begins at a multiple of so many bytes.
TMA_BYTES = 16
# The kinds of which several together fill, read or write a tile.
OF_A_TILE = {"tma load", "tma store", "copy", "write", "output", "read", VECTOR}


class TileCopies:
    """TileCopies makes one event of all the boxes, copies or stores by which a process moves one tile."""

    def __init__(self, run: Run, reading: Reading, warpgroups: int):
        self.run, self.reading, self.warpgroups = run, reading, warpgroups

    def event(self, parts: Sequence[ThreadSlice]) -> Event:
        """Returns the one event that the parts of a tile make together; raises Unsafe if they are no whole tile."""
        return getattr(self, MOVES[parts[0].seen.kind])(parts)

    def _boxes(self, parts: Sequence[ThreadSlice]) -> tuple[int, tuple[int, ...]]:
        """Returns (slot, (row, head, batch)) of a tile's TMA boxes; raises Unsafe unless they are all of its boxes.

        Of a tile in several pages these are those of each of them.
        """
        seen = parts[0].seen
        tile = self.reading.tiles.get(seen.name)
        for part in parts:
            part.check_one_thread()
        if tile is None or self.reading.boxes.get(seen.values["descriptor"]) != tile.panel:
            raise Unsafe(f"line {parts[0].line}: {seen.values['descriptor']} into {seen.name}")
        found = [(part.same("column"), part.same("element")) for part in parts]
        slot = found[0][1] // tile.elements
        if found != [(column, slot * tile.elements + at) for column, at in tile.boxes()]:
            raise Unsafe(
                f"line {parts[0].line}: boxes of columns and elements {found} of {seen.name}, expected {tile.boxes()} "
                f"from a slot of {tile.elements} on"
            )
        of_piece = len(parts) // tile.pieces
        # A piece is the next head's, or lies in a page of its own.
        heads = [number // of_piece if tile.heads > 1 else 0 for number in range(len(parts))]
        places = [(part.same("row"), part.same("head") - head, part.same("batch")) for part, head in zip(parts, heads)]
        each = len(parts) // (tile.pages or 1)
        of_pages = places[::each]
        if places != [place for place in of_pages for _ in range(each)]:
            raise Unsafe(f"line {parts[0].line}: boxes of several tiles, {sorted({*places})}")
        return slot, tuple(itertools.chain(*of_pages))

    def _load(self, parts: Sequence[ThreadSlice]) -> Event:
        seen = parts[0].seen
        slot, place = self._boxes(parts)
        self._check_aligned(parts, place)
        barriers = {(part.seen.values["barrier"], part.same("index")) for part in parts}
        tile = self.reading.tiles[seen.name]
        if barriers != {(tile.full, slot)}:
            raise Unsafe(f"line {parts[0].line}: a load into slot {slot} of {seen.name} on {sorted(barriers)}")
        if seen.values["descriptor"] != f"{tile.source}_desc":
            raise Unsafe(f"line {parts[0].line}: {seen.values['descriptor']} into {seen.name}")
        to = seen.values["blocks"]
        rank = int(self.run.rank_of(seen.threads[parts[0].mine][0]))
        blocks = (rank,) if to is None else tuple(n for n in range(to.bit_length()) if to >> n & 1)
        return Event("load", seen.name, slot, blocks=blocks, place=place)

    def _check_aligned(self, parts: Sequence[ThreadSlice], place: tuple[Value, ...]) -> None:
        """Raises Unsafe for numbers of rows that are loaded from elsewhere than a multiple of TMA's 16 bytes."""
        tile = self.reading.tiles[parts[0].seen.name]
        each = TMA_BYTES // tile.bytes
        if tile.ring and (left := term(place[0] % each)).constant != 0:
            raise Unsafe(f"line {parts[0].line}: a load of {tile.source} from row {left} of each {each}, expected 0")

    def _vector(self, parts: Sequence[ThreadSlice]) -> Event:
        """Returns the event of numbers of rows that threads read, which are all of one slot."""
        seen = parts[0].seen
        tile = self.reading.tiles.get(seen.name)
        if tile is None or not tile.ring:
            raise Unsafe(f"line {parts[0].line}: threads read numbers of {seen.name}, which has none")
        found = [slot_and_offsets(part, tile) for part in parts]
        slot, width = found[0][0], self._width(parts)
        first = int(found[0][1].min()) // tile.elements
        places = np.concatenate([offsets for _, offsets in found]) - first * tile.elements
        if any(of != slot for of, _ in found) or not width or places.min() < 0 or places.max() + width > tile.elements:
            raise Unsafe(f"line {parts[0].line}: threads read numbers of {seen.name} that are not of one slot")
        slot = slot + first
        return Event("read", tile.ring, slot, reads=((tile.ring, slot, 0),))

    def _store(self, parts: Sequence[ThreadSlice]) -> Event:
        (slot, place), name = self._boxes(parts), parts[0].seen.name
        return Event("store", name, slot, reads=((name, slot, 0),), place=place)

    def _width(self, parts: Sequence[ThreadSlice]) -> int:
        """Returns how many elements every access touches, 0 if they differ in that."""
        sizes = {part.seen.values["elements"] for part in parts}
        return sizes.pop() if len(sizes) == 1 else 0

    def _whole_slot(self, parts: Sequence[ThreadSlice]) -> tuple[Value, list[np.ndarray]]:
        """Returns the slot that threads touch, and each part's places; raises Unsafe unless each is touched once."""
        seen = parts[0].seen
        tile = self.reading.tiles[seen.name]
        slots = [slot_and_offsets(part, tile) for part in parts]
        elements = np.concatenate([places for _, places in slots])
        slot, width = int(elements.min()) // tile.elements, self._width(parts)
        wanted = np.arange(slot * tile.elements, (slot + 1) * tile.elements, width or 1)
        if len({ring for ring, _ in slots}) != 1 or len(elements) != len(wanted) or (np.sort(elements) != wanted).any():
            raise Unsafe(f"line {parts[0].line}: {seen.kind} of {seen.name} is not of one slot, each element once")
        return slots[0][0] + slot, [places - slot * tile.elements for _, places in slots]

    def _access(self, parts: Sequence[ThreadSlice]) -> Event:
        seen = parts[0].seen
        slot, places = self._whole_slot(parts)
        if seen.values.get("tensor"):
            first, rows = self._origin(parts, places)
            # Zeros come from nowhere.
            return Event(seen.kind, seen.name, slot, place=(None if {*rows.rows} == {0} else first, rows))
        return Event(seen.kind, seen.name, slot, reads=((seen.name, slot, 0),))

    def _copy(self, parts: Sequence[ThreadSlice]) -> Event:
        slot, places = self._whole_slot(parts)
        return Event("load", parts[0].seen.name, slot, place=self._origin(parts, places))

    def _origin(self, parts: Sequence[ThreadSlice], places: Sequence[np.ndarray]) -> tuple[Value, RowConditions]:
        """Returns (offset in the tensor, which rows) of a copied tile; raises Unsafe for misplaced elements."""
        # Each element must be in its place, or be zero behind the tensor.
        name, line = parts[0].seen.name, parts[0].line
        tile = self.reading.tiles[name]
        if others := {part.seen.values["tensor"] for part in parts} - {name}:
            raise Unsafe(f"line {line}: rows of {min(others) or 'no tensor'} into {name}")
        sources = [broadcast(part.each("source"), part.count) for part in parts]
        first = next(
            as_number(of[int(there[0])]) for of, at in zip(sources, places) if len(there := np.flatnonzero(at == 0))
        )
        copied: dict[tuple[int, bool], Value] = {}
        for part, source, place in zip(parts, sources, places):
            row, column = (origin[place] for origin in tile.origins)
            loaded = broadcast(part.each("inside"), part.count)
            # Zeros have no source.
            at = np.any([of != 0 for of in loaded.parts.values()], axis=0)
            rows = Spread({CONSTANT: row[at]}) * self.reading.tensors[name].row_stride
            apart = numbers(source[at] - first - rows - column[at])
            if isinstance(apart, Spread) or apart.any():
                raise Unsafe(f"line {line}: columns of {name} are not where they belong in its tile")
            for (of_row, of_tensor), inside in distinct(loaded, row, column < tile.width):
                if copied.setdefault((of_row, bool(of_tensor)), inside) != inside:
                    raise Unsafe(f"line {line}: not all columns of the rows of {name} are copied")
        if any(inside != 0 for (_, of_tensor), inside in copied.items() if not of_tensor):
            raise Unsafe(f"line {line}: not all columns of the rows of {name} are copied")
        return first, RowConditions(tuple(copied[row, True] for row in range(tile.rows)))

    def _output(self, parts: Sequence[ThreadSlice]) -> Event:
        """Returns the event of rows whose elements threads store each by itself, where the row is there."""
        # They must be all elements of the warpgroups' rows, each once.
        seen, line = parts[0].seen, parts[0].line
        tensor, width = self.reading.tensors[seen.name], self._width(parts)
        first = as_number(broadcast(parts[0].each("element"), parts[0].count)[0])
        places, stored = [], dict[int, Any]()
        for part in parts:
            row, column = _within(broadcast(part.each("element"), part.count) - first, tensor.row_stride, line)
            places += [row * tensor.columns + column + n for n in range(width)]
            for (at,), inside in distinct(part.each("inside") if "inside" in part.seen.values else 1, row):
                if stored.setdefault(at, inside) != inside:
                    raise Unsafe(f"line {line}: some elements of row {at} are stored where others are not")
        wanted = [np.arange(row * tensor.columns, (row + 1) * tensor.columns) for row in sorted(stored)]
        count = self.warpgroups * ROWS
        if not {*stored} <= {*range(count)} or not np.array_equal(
            np.sort(np.concatenate(places)), np.concatenate(wanted)
        ):
            raise Unsafe(f"line {line}: the output's elements are not those of whole rows, each once")
        rows = RowConditions(tuple(stored.get(row, 0) for row in range(count)))
        return Event("output", place=(first, rows, tensor.row_stride, 0))


def _within(apart: Any, stride: Any, line: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (rows, columns) of elements so far behind the first, by form where the rows' stride is not known."""
    row: Any = 0
    if isinstance(stride, Term):
        ((monomial, factor),) = stride.parts.items()
        row = apart.parts.get(monomial, np.zeros(len(apart), dtype=np.int64)) // factor
        apart = apart - Spread({CONSTANT: row}) * stride
    behind = numbers(apart)
    if isinstance(behind, Spread):
        raise Unsafe(f"line {line} stores an element {behind[0]} behind the first, which is in no row")
    return (row, behind) if isinstance(stride, Term) else np.divmod(behind, stride)


def slot_and_offsets(part: ThreadSlice, tile: Tile) -> tuple[Value, np.ndarray]:
    """Returns the slot of a ring that all threads' elements lie in, and each element's offset from the slot's start."""
    beside, places = split_common(part.each("element"))
    slot = beside // tile.elements
    beyond = (beside - slot * tile.elements).constant
    if beyond is None:
        raise Unsafe(f"line {part.line}: elements of no slot of {part.seen.name}, from {beside} on")
    return as_number(slot), places + beyond


def distinct(value: Value, *of: np.ndarray) -> Iterator[tuple[tuple[int, ...], Value]]:
    """Yields (numbers, value) of one thread for each different value of these arrays and of `value` together."""
    spread = broadcast(value, len(of[0]))
    table = np.stack([*of, *(np.broadcast_to(part, len(of[0])) for part in spread.parts.values())], axis=1)
    for at in np.unique(table, axis=0, return_index=True)[1].tolist():
        yield tuple(int(one[at]) for one in of), as_number(spread[at])


def same_tile(first: Observation, seen: Observation) -> bool:
    """Says whether two Observations move parts of one tile, which they do if their line, kind and name are the same.

    `seen` must have an element, too. A line that repeats with nothing but arithmetic between does parts of one tile.
    """
    return seen.kind == first.kind and seen.name == first.name and "element" in seen.values and first.line == seen.line


# The method that makes the event, by the kind of its parts.
MOVES = {
    "tma load": "_load", "tma store": "_store", "copy": "_copy", "write": "_access", "read": "_access", "output": "_output",
    VECTOR: "_vector",
}  # fmt: skip


def p_in_shared(part: ThreadSlice, reading: Reading) -> Event:
    """Returns the event of storing columns of P in shared memory; raises Unsafe unless P V reads them as stored.

    The columns must be of the scores.
    """
    scores, multiplied = reading.products.values()
    tile = multiplied.a
    if not isinstance(tile, Tile) or part.seen.name != tile.buffer:
        raise Unsafe(f"line {part.line}: it puts P in {part.seen.name}, from where no product reads it")
    form, (first, end) = part.seen.values["form"], part.seen.values["columns"]
    wanted = tile.columns, reading.dtype, scores.accumulators
    slot, beyond = divmod(part.same("element"), tile.elements)
    if form != wanted or beyond:
        raise Unsafe(
            f"line {part.line}: it puts {form} {beyond} elements behind the start of a slot, expected {wanted}"
        )
    return Event(PUT, tile.buffer, slot, place=() if (first, end) == (0, tile.columns) else (first, end))
