"""This module compares what code does with what its lowering expects, event by event; some events may stand anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tl_attention.codeproof.read.nodes import PER_HEAD
from tl_attention.codeproof.tiles.row_tiles import RowTiles
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.features import Feature, features_of
from tl_attention.program.events import AnyOrder, Event, Expected, Maybe

# A tile begins with the wait for this barrier, where a block works on several tiles.
Q_FULL = "Q_full"
# The kind of an event: arithmetic with a number of the tile's head.
COUNTS = "counts"
# Events that are compared by `check_per_head`.
OF_HEADS = PER_HEAD, COUNTS


def compare(
    who: str, found: Iterable[Event], expected: Iterator[Expected], alone: Callable[[Event], bool] = lambda event: False
) -> None:
    """Raises Unsafe unless the events `found` are those `expected` in order, apart from optional and unordered ones.

    An event that concerns its process `alone` may stand anywhere.
    """
    number, wanted, among = -1, None, set[Event]()
    for event in found:
        number += 1
        while True:
            if wanted is None:
                wanted = next(expected, None)
                among = set(wanted.events) if isinstance(wanted, AnyOrder) else set()
            if event in among:
                among.remove(event)
                wanted = wanted if among else None
                break
            if event == wanted or wanted == Maybe(event):
                wanted = None
                break
            if isinstance(wanted, Maybe):
                wanted = None
            elif alone(event):
                break
            else:
                raise Unsafe(f"operation {number} of {who} is {event}, expected {_words(wanted, among)}")
    while isinstance(wanted := wanted or next(expected, None), Maybe):
        wanted = None
    if wanted:
        raise Unsafe(f"{who} ends before {_words(wanted, among)}")


def _words(wanted: Expected | None, among: set[Event]) -> str:
    """Returns text for the expected event, or, for an AnyOrder, how many are left in `among` and one as an example."""
    if isinstance(wanted, AnyOrder):
        return f"one of {len(among)} such as {min(among, key=str)}"
    return str(wanted or "none")


def check_per_head(events: Sequence[Event], parameters: Iterable[str], tiles: Sequence[RowTiles]) -> None:
    """Raises Unsafe unless a process reads each per-head tensor at the heads of exactly these tiles, once for each.

    The process does so before it stores rows of the tile and, where scores need the number, before the tile's first
    product. What counts once for a row is left out of tiles of parts.
    """
    for feature in features_of(parameters):
        if feature.per_head:
            _check_tensor(events, feature, tiles)


def _check_tensor(events: Sequence[Event], feature: Feature, tiles: Sequence[RowTiles]) -> None:
    tensor, found, begun, counted = feature.name, list[int](), 0, set[int]()
    own = [(tile.head, tile.place_of_results()[1]) for tile in tiles]
    for event in events:
        if event.kind == PER_HEAD and event.name == tensor:
            found.append(event.value)
        elif event.kind == COUNTS and event.name == tensor:
            counted.add(max(begun, 1) - 1)
        elif event.kind == "wait" and event.name == Q_FULL:
            begun += 1
        elif feature.changes_scores and event.kind == "product" and len(found) < max(begun, 1):
            raise Unsafe(f"it multiplies before it reads {tensor}")
        elif event.kind in ("store", "output") and [*zip(found[-1:], event.place[1:2])] != own[max(begun, 1) - 1 :][:1]:
            due = ", ".join(f"{rows} with {head}" for head, rows in own[max(begun, 1) - 1 :][:1]) or "no more"
            raise Unsafe(f"it stores rows of head {event.place[1]} with {tensor} of heads {found[-1:]}, expected {due}")
    if found != (heads := [head for head, _ in own]):
        raise Unsafe(f"it reads {tensor} of heads {found}, expected {heads}")
    if feature.counts_once and counted != (whole := {n for n, tile in enumerate(tiles) if not tile.split}):
        raise Unsafe(f"{tensor} count in tiles {sorted(counted)}, expected {sorted(whole)}")
