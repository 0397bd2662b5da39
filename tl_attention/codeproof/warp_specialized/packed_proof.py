"""Problems of packed sequences for the proof: the sizes and grids that it runs, and tiles drawn from many problems.

Kernels take a list of tiles for granted, which a kernel before them writes: here it has other tiles, so that the place of
each shows, and parts of long tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import MOST_KEYS
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.bounds import LARGEST, ROOM
from tl_attention.problem.lengths import Lengths, Problems, drawn, part_blocks, straddling
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import TILE_WORDS, PackedSizes, listed
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

# Sequences begin before this row, and results of parts are in fewer places.
FARTHEST, MOST_PLACES = 1 << 20, 1 << 10
# A sequence between others.
EMPTY = Lengths(0, 7)
# A tile of so many is whole, and others have at most as many parts.
KINDS = 3
# Behind all KV blocks.
NO_END = (1 << 31) - 1
Array = np.ndarray


def packed_sizes(proof: Any, heads: int) -> Iterator[PackedSizes]:
    """Yields the sizes, of so many heads, at which a kernel is proved: each length with the one before it, empty ones between.

    Where sequences may be split, every third has its first tile whole, and those that straddle an edge of the mask have it
    in each way.
    """
    variant, block_N = proof.code.variant, proof.schedule.block_N
    gap, before = 2 * proof.rows, Lengths(proof.rows + 1, proof.rows + 5)
    each_way = {*straddling(variant.mask, proof.rows, block_N)} if variant.parts else set()
    every = (*proof.lengths(proof.program.span + 2, proof.rows, variant.box), Lengths(proof.rows, 0))
    for number, lengths in enumerate(every):
        for kind in range(KINDS) if lengths in each_way else (number,):
            keys = sum(of.seq_kv for of in (lengths, EMPTY, before))
            yield PackedSizes.of(heads, [lengths, EMPTY, before], gap + (kind - keys - gap) % KINDS)
        before = lengths
    # Loops so long that no number in the code is larger.
    yield PackedSizes.of(heads, [(5, MOST_KEYS)], gap)


def whole_or_parts(tiles: Array, keys: int, variant: Variant, block_N: int) -> Array:
    """Returns entries for these tiles (tiles, 5) as the list has them: of keys in parts, all keys of a tile or some parts.

    Every third tile is whole. Others have their first two parts, and their last. Which come first, the number of all keys
    says.
    """
    entries = []
    for number, tile in enumerate(tiles.tolist(), keys):
        each, blocks = part_blocks(tile[4]), ceildiv(tile[4], block_N)
        some = sorted({0, 1, (max(blocks, 1) - 1) // each})
        first = number // KINDS % len(some)
        parts = some[first:] + some[:first] if variant.parts and number % KINDS else ()
        place = 1 + KINDS * (number - keys)
        entries += [(*tile, part * each, (part + 1) * each, place + n) for n, part in enumerate(parts)]
        entries += [] if parts else [(*tile, 0, NO_END, 0)]
    return np.array(entries, dtype=np.int64).reshape(-1, TILE_WORDS)


@dataclass(frozen=True)
class ListedTiles:
    """ListedTiles are the list of one problem's tiles, for each of some clusters."""

    sizes: Problems
    row_tiles: Array
    entries: Array

    @classmethod
    def of(cls, sizes: PackedSizes, proof: Any, clusters: int) -> ListedTiles:
        once = listed(sizes.places, proof.rows, proof.schedule.block_M)
        entries = whole_or_parts(once, sizes.seq_kv, proof.code.variant, proof.schedule.block_N)
        of_clusters = Problems(*(np.full(clusters, size) for size in sizes[:4]))
        return cls(of_clusters, np.full(clusters, len(entries)), entries)

    def found(self, at: Array, there: Array) -> tuple[Array, Array]:
        """Returns (each entry's place, the entry's numbers), for these places in the list, 0 where none is there."""
        if not len(self.entries):
            return np.zeros_like(at), np.zeros((TILE_WORDS, len(at)), dtype=int)
        at = np.where(there, at, 0)
        return at, self.entries[at].T

    def count(self, blocks: Array) -> Any:
        """Returns how many entries the list has."""
        return np.full(len(blocks), len(self.entries))

    def words(self, blocks: Array, entries: Array) -> Array:
        """Returns the numbers of these entries, (TILE_WORDS, blocks); raises Unsafe for one that the list does not have."""
        if ((entries < 0) | (entries >= len(self.entries))).any():
            raise Unsafe(f"it takes entry {int(entries.max())} of the {len(self.entries)} that the list has")
        return self.entries[entries].T


@dataclass
class DrawnTiles:
    """DrawnTiles are tiles of many problems, one for each turn of each cluster, whose problem it is.

    `number` is each cluster's first tile. `found` must be asked for one turn after the other.
    """

    sizes: Problems
    row_tiles: Array
    number: Array
    fields: Sequence[Array]
    cluster: int
    ats: list[Array] = field(default_factory=list)
    found_fields: list[Array] = field(default_factory=list)

    @classmethod
    def of(cls, schedule: Schedule, variant: Variant, rows: int, turns: int) -> DrawnTiles:
        draw = np.random.default_rng(37)
        problems = drawn(variant.mask, rows, schedule.block_N, variant.group)
        kept = problems.seq_q > 0
        heads, seq_q, seq_kv = (size[kept] for size in problems[1:])
        count = len(heads)
        fields = []
        for turn in range(turns):
            order = draw.permutation(count) if turn else np.arange(count)
            q, kv = seq_q[order], seq_kv[order]
            tiles = ceildiv(q, rows)
            near = draw.integers(0, 8, count)
            at = np.where(
                near < 3, near, np.where(near < 6, tiles - 1 - near % 3, (draw.random(count) * tiles).astype(int))
            )
            first = np.clip(at, 0, tiles - 1) * schedule.kernel.cluster
            begins = draw.integers(0, FARTHEST, (2, count))
            whole = draw.random(count) < (0.4 if variant.parts else 1)
            each = part_blocks(kv)
            part = (draw.random(count) * ceildiv(ceildiv(kv, schedule.block_N), each)).astype(int)
            own = np.where(whole, 0, part * each), np.where(whole, NO_END, (part + 1) * each)
            places = np.where(whole, 0, draw.integers(1, MOST_PLACES, count))
            fields.append(np.stack([first, begins[0], q, begins[1], kv, *own, places]))
        of_results = variant.heads_of_tiles(heads)
        row_tiles = np.minimum(draw.choice([1, 2, 3, 5, 9, 300, 20_000], count), (LARGEST - ROOM) // of_results)
        total = row_tiles * of_results
        ends = draw.integers(0, 50, count)
        chosen = draw.integers(0, 3, count)
        number = np.where(
            chosen == 0, ends, np.where(chosen == 1, total - 1 - ends, (draw.random(count) * total).astype(int))
        )
        totals = (
            FARTHEST + np.max([each[2] for each in fields], axis=0),
            FARTHEST + np.max([each[4] for each in fields], axis=0),
        )
        sizes = Problems(np.full(count, turns), heads, *totals)
        return cls(sizes, row_tiles, np.clip(number, 0, total - 1), fields, schedule.kernel.cluster)

    def found(self, at: Array, there: Array) -> tuple[Array, Array]:
        """Returns (each entry's place, the entry's numbers) for the next turn; an entry met again is the same."""
        own = self.fields[len(self.ats)]
        for before, fields in zip(self.ats, self.found_fields):
            own = np.where(at == before, fields, own)
        self.ats.append(np.where(there, at, -1))
        self.found_fields.append(own)
        return at, own

    def count(self, blocks: Array) -> Any:
        """Returns how many entries the list of each block's problem has."""
        return self.row_tiles[blocks // self.cluster]

    def words(self, blocks: Array, entries: Array) -> Array:
        """Returns the numbers of these entries, (TILE_WORDS, blocks); raises Unsafe for one that is not a tile's."""
        cluster = blocks // self.cluster
        found = np.full((TILE_WORDS, len(blocks)), -1)
        for at, fields in zip(self.ats, self.found_fields):
            found = np.where(at[cluster] == entries, fields[:, cluster], found)
        if (found[2] < 0).any():
            raise Unsafe("it takes an entry of the list that is not its tile's")
        return found
