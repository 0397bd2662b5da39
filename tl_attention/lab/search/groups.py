"""Lists everything that one step can change about groups: their order, their stages, and which statements they hold.

Each move yields all changes that it can make to a schedule, well-formed or not. A change has the keys that change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from tl_attention.schedule.keys import PRODUCER, Keys
from tl_attention.schedule.loop.attention import NUMBER, SOURCE
from tl_attention.schedule.loop.table import whole

Change = dict[str, Any]
# The keys that say before which statement something is waited for, or released.
PLACES = ("wait_before", "release_before")
# (statements, stage), in the order of the steady state; `Keys.emission` has them.
Placed = tuple[tuple[tuple[str, ...], int], ...]


def as_keys(placed: Placed, producers: Sequence[str]) -> Change:
    """Returns the keys that say which groups stand where.

    Groups come by their first statement in source order, producers in the order in which they are issued.
    """
    entries = [(names, order, stage) for order, (names, stage) in enumerate(placed)]
    entries += [((load,), PRODUCER, PRODUCER) for load in sorted(producers, key=_source_order)]
    entries.sort(key=lambda entry: _source_order(entry[0][0]))
    issued = iter(producers)
    return {
        "group": tuple((next(issued),) if order == PRODUCER else names for names, order, _ in entries),
        "order": tuple(order for _, order, _ in entries),
        "stage": tuple(stage for _, _, stage in entries),
    }


def _source_order(statement: str) -> tuple[int, int]:
    return NUMBER[whole(statement)], int(statement.partition(".")[2] or 0)


def _without(placed: Placed, index: int) -> Placed:
    return placed[:index] + placed[index + 1 :]


def _with(placed: Placed, index: int, *groups: tuple[tuple[str, ...], int]) -> Placed:
    return placed[:index] + groups + placed[index:]


def swap(keys: Keys) -> Iterator[Change]:
    """Swaps two groups."""
    for a, b in combinations(range(len(keys.emission)), 2):
        placed = list(keys.emission)
        placed[a], placed[b] = placed[b], placed[a]
        yield as_keys(tuple(placed), keys.producers)


def move(keys: Keys) -> Iterator[Change]:
    """Moves a group to another place."""
    for index, group in enumerate(keys.emission):
        others = _without(keys.emission, index)
        for place in range(len(others) + 1):
            yield as_keys(_with(others, place, group), keys.producers)


def restage(keys: Keys) -> Iterator[Change]:
    """Makes a group work on the block before, or after."""
    for index, (names, stage) in enumerate(keys.emission):
        for other in {max(0, stage - 1), stage + 1}:
            yield as_keys(_with(_without(keys.emission, index), index, (names, other)), keys.producers)


def split(keys: Keys) -> Iterator[Change]:
    """Makes the last statements of a group a group of their own, at any place."""
    for index, (names, stage) in enumerate(keys.emission):
        for cut in range(1, len(names)):
            rest = _with(_without(keys.emission, index), index, (names[:cut], stage))
            for place in range(len(rest) + 1):
                yield as_keys(_with(rest, place, (names[cut:], stage)), keys.producers)


def join(keys: Keys) -> Iterator[Change]:
    """Joins two groups of one stage, one after the other."""
    for index, ((names, stage), (others, other)) in enumerate(zip(keys.emission, keys.emission[1:])):
        if stage == other:
            rest = _without(_without(keys.emission, index), index)
            yield as_keys(_with(rest, index, (names + others, stage)), keys.producers)


def shuffle(keys: Keys) -> Iterator[Change]:
    """Swaps two statements of a group."""
    for index, (names, stage) in enumerate(keys.emission):
        for a, b in combinations(range(len(names)), 2):
            order = list(names)
            order[a], order[b] = order[b], order[a]
            yield as_keys(_with(_without(keys.emission, index), index, (tuple(order), stage)), keys.producers)


def toggle_load(keys: Keys) -> Iterator[Change]:
    """Gives a producer's load a place in the order, or makes a load a producer, which is issued at any turn."""
    for load in keys.producers:
        others = [other for other in keys.producers if other != load]
        for place in range(len(keys.emission) + 1):
            for stage in range(keys.depth):
                yield as_keys(_with(keys.emission, place, ((load,), stage)), others)
    for index, (names, _) in enumerate(keys.emission):
        if len(names) == 1 and names[0] in SOURCE.loads:
            for turn in range(len(keys.producers) + 1):
                issued = (*keys.producers[:turn], names[0], *keys.producers[turn:])
                yield as_keys(_without(keys.emission, index), issued)


MOVES: dict[str, Callable[[Keys], Iterator[Change]]] = {
    f.__name__: f for f in (swap, move, restage, split, join, shuffle, toggle_load)
}
