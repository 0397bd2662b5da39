"""This module proves that all blocks of a grid work on the right tiles, tile after tile.

The first and the last iteration of each loop over KV blocks run, so the first and the last block of a tile are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tl_attention.codeproof.read.copies import TENSORS
from tl_attention.codeproof.read.nodes import PER_HEAD
from tl_attention.codeproof.run.run import Run, Seen
from tl_attention.codeproof.run.thread_slice import Reading
from tl_attention.codeproof.tiles.row_tiles import RowTiles
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.program.events import NO_BATCH

NONE = -1
# Loads of K and V are remembered by the first and the last of a tile.
FIRST, LAST = " first", " last"
# Results of a part of a packed sequence lie elsewhere than those of all keys.
OF_PART = " of a part"
# What is done, by which warpgroup, and for each turn and block (row, head, batch), NONE where there was nothing.
Done = dict[tuple[str, int], np.ndarray]


def check_places(
    run: Run, tiles: Sequence[RowTiles], reading: Reading, warpgroups: int, optional: Collection[str]
) -> None:
    """Raises Unsafe unless all threads work on the rows of their block's tile, on the KV blocks that the tile needs.

    The run is of one thread of each warpgroup and producer; `tiles` are those of its turns, an entry for each block.
    """
    done: Done = {}
    for seen in run.seen:
        place = PLACES.get(seen.kind)
        if place is None or ("column" in seen.values and np.any(seen.values["column"])):
            continue
        for name, groups, values in place(seen, run, reading):
            for group in np.unique(groups):
                mine = groups == group
                nothing = np.full((len(tiles), len(run.threads.blocks), 3), NONE)
                done.setdefault((name, int(group)), nothing)[seen.turn, run.threads.place[seen.threads[mine]]] = values[
                    mine
                ]
    for turn, of in enumerate(tiles):
        for name, group, wanted, needed, allowed in _wanted(of, warpgroups, optional):
            found = done[name, group][turn] if (name, group) in done else np.full_like(wanted, NONE)
            missing = found[:, 0] == NONE
            # Where elements are stored one by one, what stands for a packed sequence's batch does not show.
            hidden = ~missing & (found[:, 2] == NO_BATCH) & (name == "output")
            wrong = (found[:, :2] != wanted[:, :2]).any(axis=-1) | ((found[:, 2] != wanted[:, 2]) & ~hidden)
            faults = (needed & wrong) | (~missing & (wrong | ~allowed))
            if faults.any():
                block = int(np.argmax(faults))
                raise Unsafe(
                    f"tile {turn} of block {block}: (row, head, batch) of {name} of warpgroup {group} is "
                    f"{found[block].tolist()}, expected {wanted[block].tolist() if allowed[block] else 'none'}"
                )


def _wanted(of: RowTiles, warpgroups: int, optional: Collection[str]) -> Iterator[tuple[str, int, Any, Any, Any]]:
    """Yields, for each warpgroup, what to load or store, its right places, and which blocks must and may do so.

    The form is (what, warpgroup, places, which blocks must do so, which blocks may).
    """
    there, box = of.there, of.cut.variant.box
    for group in range(warpgroups):
        own = np.stack(np.broadcast_arrays(*of.place(box * group)), axis=-1)
        with_rows = there & (of.row + box * group < of.sizes.seq_q)
        results = np.stack(np.broadcast_arrays(*of.place_of_results(box * group)), axis=-1)
        yield "Q", group, own, there, there
        for stored in ("output", *(("lse",) if "LSE" in optional else ())):
            if of.split is None:
                yield stored, group, results, with_rows, there
                continue
            for name, own in ((stored, ~of.split), (stored + OF_PART, of.split)):
                yield name, group, results, with_rows & own, there & own
        for tensor in TENSORS:
            if tensor in optional:
                yield tensor, group, np.stack([of.head] * 3, axis=-1), there, there
    # The first block of a cluster loads K and V for all of its blocks.
    leading, (start, end) = there & (of.rank == 0), of.blocks
    for name, block in ((FIRST, end - 1), (LAST, start)):
        rows = np.stack(np.broadcast_arrays(*of.place_of_block(block)), axis=-1)
        yield from ((ring + name, 0, rows, leading, leading) for ring in "KV")


def _loaded(seen: Seen, run: Run, reading: Reading) -> Any:
    place = _place(seen, run)
    if seen.name == "Q":
        # One box for each warpgroup's rows; of several heads it is the first one's.
        if np.any(seen.values["element"] % reading.tiles["Q"].elements):
            return
        slots = np.broadcast_to(seen.values["index"], len(seen.threads))
        yield "Q", slots, place
        return
    place_of = run.threads.place[seen.threads]
    known = run.noted.setdefault((seen.name, seen.turn), np.zeros(len(run.threads.blocks), dtype=bool))
    first = ~known[place_of]
    known[place_of] = True
    group = np.zeros(len(seen.threads), dtype=int)
    yield seen.name + LAST, group, place
    if first.any():
        yield seen.name + FIRST, np.where(first, 0, NONE), place


def _place(seen: Seen, run: Run) -> np.ndarray:
    return np.stack([np.broadcast_to(seen.values[n], len(seen.threads)) for n in ("row", "head", "batch")], axis=-1)


def _stored(seen: Seen, run: Run, reading: Reading) -> Any:
    yield "output", run.threads.y[seen.threads], _place(seen, run)


def _rows(seen: Seen, run: Run, reading: Reading) -> Any:
    name = ROWS_OF[seen.kind] + (OF_PART if reading.split and reading.of_part(seen.name) else "")
    rows = np.broadcast_to(seen.values["rows"], len(seen.threads))
    batch, head, row, beyond = reading.tensors[seen.name].bounded(seen.values["element"], rows)
    if np.any(beyond):
        raise Unsafe(f"line {seen.line + 1} stores at another row than it has rows left from there")
    yield name, run.threads.y[seen.threads], np.stack([row, head, batch], axis=-1)


def _element(seen: Seen, run: Run, reading: Reading) -> Any:
    """Yields (row, head, batch) of each thread's output, in group -1 unless it is its first at a row's start.

    It is the first element of the tile. Where in the tile an element lies is for runs of all threads to show.
    """
    tensor = reading.tensors["Output"]
    element = np.broadcast_to(seen.values["element"], len(seen.threads))
    batch, head, row, column = tensor.place(element)
    first = column == 0
    known = run.noted.setdefault(("output", seen.turn), np.zeros(len(run.threads), dtype=bool))
    first = first & ~known[seen.threads]
    known[seen.threads[first]] = True
    yield "output", np.where(first, run.threads.y[seen.threads], NONE), np.stack([row, head, batch], axis=-1)


def _of_head(seen: Seen, run: Run, reading: Reading) -> Any:
    """Yields (tensor, warpgroups, places) of a read of a per-head number, with the head three times as the place."""
    head = np.broadcast_to(seen.values["value"], len(seen.threads))
    yield seen.name, run.threads.y[seen.threads], np.stack([head, head, head], axis=-1)


# What a process stores row by row.
ROWS_OF = {"rows of output": "output", "rows of lse": "lse"}
PLACES: dict[str, Callable[[Seen, Run, Reading], Any]] = {
    "tma load": _loaded,
    "tma store": _stored,
    "output": _element,
    PER_HEAD: _of_head,
    **dict.fromkeys(ROWS_OF, _rows),
}
