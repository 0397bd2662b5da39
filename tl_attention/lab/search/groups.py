"""The keys that say which groups stand where follow from the order of the steady state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tl_attention.schedule.keys import PRODUCER
from tl_attention.schedule.loop.loops import NUMBER
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
