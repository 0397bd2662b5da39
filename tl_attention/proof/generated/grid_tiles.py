"""Which tile each block of a generated warp-specialised kernel works on: all blocks at once, a tile at a time.

Of each loop over KV blocks the first and the last iteration run, so the first and the last block of a tile are seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tl_attention.hardware.warpgroup import ROWS
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import visited
from tl_attention.proof.generated.parts import Expected
from tl_attention.proof.generated.per_head import PER_HEAD
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.samples import ARRAYS
from tl_attention.proof.generated.seen import Seen

NONE = -1
# Loads of K and V are remembered by the first and the last of a tile.
FIRST, LAST = " first", " last"


@dataclass
class GridTiles:
    """What the blocks of a run did, by (turn, block): row, head and batch of what each role took.

    `blocks` are the blocks' numbers. `at["Q", 1]` is the rows of Q for warpgroup 1, `at["output", 0]` what warpgroup 0
    stored, `at["K first", 0]` the first rows of K that were loaded: arrays of (row, head, batch), NONE where there was
    nothing.
    """

    at: dict[tuple[str, int], np.ndarray]
    blocks: np.ndarray

    @classmethod
    def of(cls, run: Run, turns: int, expected: Expected) -> GridTiles:
        """Those of a run of one thread of each warpgroup and producer, that blocks 0, 1, ... took part in."""
        blocks = run.threads.blocks
        found = cls({("Q", 0): np.full((turns, len(blocks), 3), NONE)}, blocks)
        for seen in run.seen:
            place = PLACES.get(seen.kind)
            if place is None or ("column" in seen.values and np.any(seen.values["column"])):
                continue
            for name, groups, values in place(seen, run, expected):
                for group in np.unique(groups):
                    mine = groups == group
                    target = found.at.setdefault((name, int(group)), np.full((turns, len(found.blocks), 3), NONE))
                    target[seen.turn, run.threads.place[seen.threads[mine]]] = values[mine]
        return found

    def check_per_head(self, tensor: str, warpgroups: int) -> None:
        """Raise Unsafe unless everybody takes its tile's head's number of the tensor."""
        tiles = self.at["Q", 0]
        for group in range(warpgroups):
            wanted = np.where(tiles[..., 0] != NONE, tiles[..., 1], NONE)
            found = self.at.get((tensor, group), np.full_like(tiles, NONE))[..., 1]
            if (found != wanted).any():
                turn, block = np.argwhere(found != wanted)[0]
                raise Unsafe(
                    f"tile {turn} of block {block}: warpgroup {group} reads {tensor} of head {found[turn, block]}, "
                    f"expected {wanted[turn, block]}"
                )

    def __getitem__(self, key: tuple[str, int]) -> np.ndarray:
        return self.at[key]

    def check(
        self, shape: AttentionShape, warpgroups: int, block_M: int, block_N: int, cluster: int, least: int, lse: bool
    ) -> None:
        """Raise Unsafe unless everybody works on the rows of one tile, on the KV blocks that it needs."""
        tiles = self.at["Q", 0]
        row = tiles[..., 0]
        there = row != NONE
        if shape.seq_q and not there.any():
            raise Unsafe("no block loads any rows of Q")
        rank = self.blocks % cluster
        if (there & ((row % block_M != 0) | (row // block_M % cluster != rank))).any():
            raise Unsafe("a block loads rows of Q that are not a tile of its own")
        for group in range(warpgroups):
            self._check_rows("Q", group, tiles, there, shape, always=True)
            self._check_rows("output", group, tiles, there, shape, always=False)
            if lse:
                self._check_rows("lse", group, tiles, there, shape, always=False)
        self._check_blocks(tiles, there, shape, block_M * cluster, block_N, cluster, least)

    def _check_rows(
        self, name: str, group: int, tiles: np.ndarray, there: np.ndarray, shape: AttentionShape, always: bool
    ) -> None:
        wanted = tiles + np.array([ROWS * group, 0, 0])
        found = self.at.get((name, group), np.full_like(tiles, NONE))
        needed = there if always else there & (wanted[..., 0] < shape.seq_q)
        missing, wrong = found[..., 0] == NONE, (found != wanted).any(axis=-1)
        if (needed & wrong).any() or (~missing & (wrong | ~there)).any():
            turn, block = np.argwhere((needed & wrong) | (~missing & (wrong | ~there)))[0]
            raise Unsafe(
                f"tile {turn} of block {block}: (row, head, batch) of {name} of warpgroup {group} is "
                f"{found[turn, block].tolist()}, expected {wanted[turn, block].tolist()}"
            )

    def _check_blocks(
        self,
        tiles: np.ndarray,
        there: np.ndarray,
        shape: AttentionShape,
        rows: int,
        block_N: int,
        cluster: int,
        least: int,
    ) -> None:
        """The first block of a cluster loads K and V for all of its blocks."""
        leading = tiles[:, ::cluster]
        start, end = visited(shape, shape.mask, leading[..., 0] // rows * rows, rows, block_N, least, ARRAYS)
        for name, block in ((FIRST, end - 1), (LAST, start)):
            wanted = np.stack([block * block_N, leading[..., 1] // shape.group, leading[..., 2]], axis=-1)
            wanted = np.where(there[:, ::cluster, None], wanted, NONE)
            for ring in "KV":
                found = self.at.get((ring + name, 0), np.full_like(tiles, NONE))
                if (found[:, ::cluster] != wanted).any():
                    raise Unsafe(f"the{name} rows of {ring} of a tile are not those that its rows of Q need")


def _loaded(seen: Seen, run: Run, expected: Expected) -> Any:
    place = _place(seen, run)
    if seen.name == "Q":
        # One box for each warpgroup's rows.
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


def _stored(seen: Seen, run: Run, expected: Expected) -> Any:
    yield "output", run.threads.y[seen.threads], _place(seen, run)


def _rows(seen: Seen, run: Run, expected: Expected) -> Any:
    name, tensor = ROWS_OF[seen.kind]
    rows = np.broadcast_to(seen.values["rows"], len(seen.threads))
    batch, head, row, beyond = expected.tensors[tensor].bounded(seen.values["element"], rows)
    if np.any(beyond):
        raise Unsafe(f"line {seen.line + 1} stores at another row than it has rows left from there")
    yield name, run.threads.y[seen.threads], np.stack([row, head, batch], axis=-1)


def _element(seen: Seen, run: Run, expected: Expected) -> Any:
    """A thread's own elements: its first is that of its tile, whose place in the tile is for runs of all threads."""
    tensor = expected.tensors["Output"]
    element = np.broadcast_to(seen.values["element"], len(seen.threads))
    batch, head, row, column = tensor.split(element)
    first = column == 0
    known = run.noted.setdefault(("output", seen.turn), np.zeros(len(run.threads), dtype=bool))
    first = first & ~known[seen.threads]
    known[seen.threads[first]] = True
    yield "output", np.where(first, run.threads.y[seen.threads], NONE), np.stack([row, head, batch], axis=-1)


def _of_head(seen: Seen, run: Run, expected: Expected) -> Any:
    """Of a head's number the head is all that there is to tell."""
    head = np.broadcast_to(seen.values["value"], len(seen.threads))
    yield seen.name, run.threads.y[seen.threads], np.stack([head, head, head], axis=-1)


# What a process stores row by row, and where.
ROWS_OF = {"rows of output": ("output", "Output"), "rows of lse": ("lse", "LSE")}
PLACES: Mapping[str, Any] = {
    "tma load": _loaded,
    "tma store": _stored,
    "output": _element,
    PER_HEAD: _of_head,
    **dict.fromkeys(ROWS_OF, _rows),
}
