"""The loop's dependence graph, off what its statements read and write: what must come before what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Literal, NamedTuple

from tl_attention.loop.table import Statement, Table

DependenceKind = Literal["flow", "anti", "output"]


class Dependence(NamedTuple):
    """`later` of KV block k + `distance` may not start before `earlier` of block k is done with `buffer`.

    flow: one writes what the other reads; anti: one reads what the other overwrites; output: both write it.
    """

    earlier: str
    later: str
    distance: int
    kind: DependenceKind
    buffer: str


def dependences(table: Table, buffers: Mapping[str, int]) -> tuple[Dependence, ...]:
    """Every dependence between statements of a loop that runs in source order, rings having so many `buffers` by load.

    Two statements depend on each other where they touch the same memory and one of them writes it, also where a third
    one writes it in between: what is implied by others is listed too. A buffer has one version, whose next use may
    come with the same block or with the next one; a slot of a ring is used again as many blocks later as it has slots.
    The values are not looked at: an order that breaks an edge may still be right, as where a statement writes what was
    there before.
    """

    def distance(a: Statement, b: Statement, kind: DependenceKind, buffer: str) -> int:
        if buffer in table.rings:
            return 0 if kind == "flow" else buffers[table.rings[buffer]]
        return int(table.number[a.name] >= table.number[b.name])

    return tuple(
        Dependence(a.name, b.name, distance(a, b, kind, buffer), kind, buffer)
        for a, b in product(table.statements, repeat=2)
        for buffer, kind in _shared(a, b)
    )


def _shared(a: Statement, b: Statement) -> Iterator[tuple[str, DependenceKind]]:
    """The buffers for which `b` depends on `a` when it comes later, and how."""
    for buffer in dict.fromkeys((*a.reads, *a.writes)):
        if buffer in a.writes and buffer in b.reads:
            yield buffer, "flow"
        if buffer in a.reads and buffer in b.writes:
            yield buffer, "anti"
        if buffer in a.writes and buffer in b.writes:
            yield buffer, "output"
