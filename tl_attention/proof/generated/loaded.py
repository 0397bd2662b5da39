"""What a producer of the warp-specialised kernel loads, tile by tile, off its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tl_attention.hardware.warpgroup import ROWS
from tl_attention.proof.events import Event, Q
from tl_attention.proof.generated.refused import Unsafe

# (row, head, batch)
Place = tuple[int, ...]


@dataclass(frozen=True)
class Loaded:
    """A tile that a producer loads: (row, head, batch) of its first row of Q, and its KV blocks."""

    place: Place
    first: int
    blocks: int


def loaded_tiles(
    producer: Sequence[Event], of_rank_0: Sequence[Loaded] | None, block_N: int, group: int
) -> list[Loaded]:
    """The tiles of a producer, whose KV blocks, if it loads none, are those that the first block's loads.

    `group` heads of Q share one of K and V.
    """
    rows: dict[str, list[Place]] = {"K": [], "V": []}
    jumps: list[int] = []
    starts: list[int] = []
    queries: list[list[Place]] = []
    left = 0
    for event in producer:
        if event.kind == "left out":
            left = event.value
        elif event.kind == "load" and event.name in rows:
            rows[event.name].append(event.place)
            if event.name == "K":
                jumps.append(left)
                left = 0
        elif event.kind == "load" and event.index == 0:
            # Q, which comes with the first block of its tile.
            starts.append(len(rows["K"]) - 1)
            queries.append([event.place])
        elif event.kind == "load":
            queries[-1].append(event.place)
    _check_queries(queries)
    places = [places[0] for places in queries]
    if not rows["K"] and not rows["V"] and of_rank_0 is not None:
        return [Loaded(place, tile.first, tile.blocks) for place, tile in zip(places, of_rank_0, strict=True)]
    if rows["K"] != rows["V"] or not starts or starts[0] != 0:
        raise Unsafe("its producer does not load V of the same rows as K")
    ends = [*starts[1:], len(rows["K"])]
    tiles = zip(places, _cut(rows["K"], starts, ends), _cut(jumps, starts, ends))
    return [_loaded(*found, block_N, group) for found in tiles]


def _cut(values: Sequence, starts: Sequence[int], ends: Sequence[int]) -> list[Sequence]:
    return [values[start:end] for start, end in zip(starts, ends)]


def _check_queries(queries: Sequence[Sequence[Place]]) -> None:
    for row, head, batch in (found[0] for found in queries):
        found = next(found for found in queries if found[0] == (row, head, batch))
        if list(found) != [(row + ROWS * n, head, batch) for n in range(len(found))]:
            raise Unsafe(f"it loads {found} as (row, head, batch) of Q for one tile")


def _loaded(place: Place, rows: Sequence[Place], jumps: Sequence[int], block_N: int, group: int) -> Loaded:
    """A tile of the rows of K that are loaded for it, of the head that its own shares, from the last block to the first."""
    _, head, batch = place
    first, last = rows[0][0], rows[-1][0]
    blocks = [first - block_N * (n + sum(jumps[: n + 1])) for n in range(len(rows))]
    if [(row, head // group, batch) for row in blocks] != list(rows) or first % block_N:
        raise Unsafe(
            f"its producer loads {list(rows)[:20]} as (row, head, batch) of K, not block after block of head "
            f"{head // group} for {place} of Q"
        )
    return Loaded(place, last // block_N, (first - last) // block_N + 1)


def left_out(found: Sequence[Event]) -> list[int]:
    """How many iterations of each tile were left out of the run."""
    tiles: list[int] = []
    for event in found:
        if (event.kind, event.name) == ("wait", "Q_full") or (event.kind, event.name, event.index) == ("load", Q, 0):
            tiles.append(0)
        elif event.kind == "left out":
            tiles[-1] += event.value
    return tiles
