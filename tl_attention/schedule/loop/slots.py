"""Chunks of a buffer share registers: they take turns in as many slots as chunks are in use at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby

from tl_attention.schedule.loop.attention import FRAGMENTS
from tl_attention.schedule.loop.table import Statement, Table, whole

# (statement, stage), in the order of the steady state.
Emission = Sequence[tuple[str, int]]


def in_slots(table: Table, emission: Emission) -> Table:
    """Returns the table with each chunk of a slotted buffer renamed to its slot of registers, such as `K_local[1]`.

    Chunk c is in slot c modulo their number, which follows from the order: one slot if each chunk is consumed before
    the next is loaded; two if the next is loaded before; one per chunk if the whole tile is loaded first.
    """
    chunks: dict[str, list[str]] = {}
    for s in table.statements:
        for buffer in s.writes:
            if whole(buffer) in table.slotted:
                chunks.setdefault(whole(buffer), []).append(buffer)
    slots = {buffer: _slots(table, emission, names) for buffer, names in chunks.items()}
    slot_of = {
        name: f"{buffer}[{number % slots[buffer]}]"
        for buffer, names in chunks.items()
        for number, name in enumerate(names)
    }

    def renamed(buffers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(slot_of.get(buffer, buffer) for buffer in buffers)

    statements = (replace(s, reads=renamed(s.reads), writes=renamed(s.writes)) for s in _chunk_by_chunk(table))
    return replace(table, statements=tuple(statements), slots=slots)


def _chunk_by_chunk(table: Table) -> Iterator[Statement]:
    """Yields the statements in source order, but each product's chunk right behind the loads of its fragments."""

    def product(s: Statement) -> str | None:
        return FRAGMENTS.get(whole(s.name), whole(s.name) if whole(s.name) in FRAGMENTS.values() else None)

    # A product and the loads of its fragments follow each other.
    for multiplied, grouped in groupby(table.statements, product):
        statements = list(grouped)
        yield from sorted(statements, key=lambda s: s.columns[0] if s.columns else 0) if multiplied else statements


def _slots(table: Table, emission: Emission, chunks: Sequence[str]) -> int:
    """Returns the least number of slots in which no chunk is overwritten before its last read, at most one each."""
    length = len(emission)
    # When each statement works on block 0, in places of the order.
    time = {name: stage * length + place for place, (name, stage) in enumerate(emission)}
    written = {buffer: time.get(s.name, 0) for s in table.statements for buffer in s.writes}
    read = {
        chunk: max((time.get(s.name, 0) for s in table.statements if chunk in s.reads), default=0) for chunk in chunks
    }

    def over(chunk: str, other: str) -> bool:
        """Returns True if the chunk `other` is written, for this block or another one, while `chunk` is in use."""
        behind = (written[other] - written[chunk]) % length or length
        return written[chunk] + behind <= read[chunk]

    def enough(slots: int) -> bool:
        return not any(
            over(chunk, other)
            for n, chunk in enumerate(chunks)
            for m, other in enumerate(chunks)
            if (m - n) % slots == 0
        )

    return next(slots for slots in count(1) if slots >= len(chunks) or enough(slots))
