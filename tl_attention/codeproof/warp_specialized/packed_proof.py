"""Problems of packed sequences for the proof: the sizes and grids that it runs, and tiles drawn from many problems.

Kernels take a list of tiles for granted, which a kernel before them writes: here it has other tiles, so that the place of
each shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import MOST_KEYS
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.bounds import LARGEST, ROOM
from tl_attention.problem.lengths import Lengths, Problems, drawn, results, straddling
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import PackedSizes, listed
from tl_attention.problem.variant import Variant
from tl_attention.problem.warpgroup import ROWS
from tl_attention.schedule.schedule import Schedule

# Sequences begin before this row.
FARTHEST = 1 << 20
Array = np.ndarray


def packed_sizes(proof: Any, heads: int) -> Iterator[PackedSizes]:
    """Yields the sizes, of so many heads, at which a kernel is proved: each length with the one before it, empty ones between."""
    variant, gap = proof.code.variant, 2 * proof.rows
    before = Lengths(proof.rows + 1, proof.rows + 5)
    some = (*proof.lengths(proof.program.span + 2, proof.rows, ROWS), Lengths(proof.rows, 0))
    few = straddling(variant.mask, proof.rows // variant.row_heads, proof.schedule.block_N)
    for own in (*some, *(few if variant.row_heads > 1 else ())):
        # A query has as many rows as heads lie behind each other.
        lengths = Lengths(own.seq_q * variant.row_heads, own.seq_kv)
        yield PackedSizes.of(heads, [lengths, Lengths(0, 7), before], gap)
        before = lengths
    # Loops so long that no number in the code is larger.
    yield PackedSizes.of(heads, [(5, MOST_KEYS)], gap)


@dataclass(frozen=True)
class ListedTiles:
    """ListedTiles are both lists of one problem's tiles, for each of some clusters: the second is backwards behind tile 0.

    Tile 0 begins both, as the proof looks at the first tile of each problem.
    """

    sizes: Problems
    row_tiles: Array
    both: Array
    ids: Array

    @classmethod
    def of(cls, sizes: PackedSizes, rows: int, block_M: int, clusters: int) -> ListedTiles:
        once = listed(sizes.places, rows, block_M)
        numbers = np.arange(len(once))
        of_clusters = Problems(*(np.full(clusters, size) for size in sizes[:4]))
        both, ids = (np.concatenate([part, part[:1], part[:0:-1]]) for part in (once, numbers))
        return cls(of_clusters, np.full(clusters, len(once)), both, ids)

    def found(self, at: Array, there: Array) -> tuple[Array, Array]:
        """Returns (each entry's tile, the entry's five numbers), for these places in the lists, 0 where none is there."""
        if not len(self.ids):
            return np.zeros_like(at), np.zeros((5, len(at)), dtype=int)
        at = np.where(there, at, 0)
        return self.ids[at], self.both[at].T

    def count(self, blocks: Array) -> Any:
        """Returns how many tiles the first list has."""
        return np.full(len(blocks), len(self.ids) // 2)

    def words(self, blocks: Array, entries: Array) -> Array:
        """Returns the numbers of these entries, (5, blocks); raises Unsafe for one that the lists do not have."""
        if ((entries < 0) | (entries >= len(self.ids))).any():
            raise Unsafe(f"it takes entry {int(entries.max())} of the {len(self.ids)} that the lists have")
        return self.both[entries].T


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
            fields.append(np.stack([first, begins[0], q, begins[1], kv]))
        of_results = results(variant, Problems(*[heads] * 4))
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
        """Returns (each entry's place, the entry's five numbers) for the next turn; an entry met again is the same."""
        own = self.fields[len(self.ats)]
        for before, fields in zip(self.ats, self.found_fields):
            own = np.where(at == before, fields, own)
        self.ats.append(np.where(there, at, -1))
        self.found_fields.append(own)
        return at, own

    def count(self, blocks: Array) -> Any:
        """Returns how many tiles the first list of each block's problem has."""
        return self.row_tiles[blocks // self.cluster]

    def words(self, blocks: Array, entries: Array) -> Array:
        """Returns the numbers of these entries, (5, blocks); raises Unsafe for one that is not a tile's."""
        cluster = blocks // self.cluster
        found = np.full((5, len(blocks)), -1)
        for at, fields in zip(self.ats, self.found_fields):
            found = np.where(at[cluster] == entries, fields[:, cluster], found)
        if (found[2] < 0).any():
            raise Unsafe("it takes an entry of the lists that is not its tile's")
        return found
