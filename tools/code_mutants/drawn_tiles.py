"""Tiles are drawn from many problems at once, at which mutated code runs beside the code as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_attention.codeproof.verdict import Unsafe
from tl_attention.codeproof.warp_specialized.packed_proof import NO_END, part_blocks
from tl_attention.kernels.warp_specialized.tile_order import entry_and_head
from tl_attention.problem.bounds import GRID_YZ, LARGEST, PAIRS, ROOM
from tl_attention.problem.lengths import Problems
from tl_attention.problem.mask import Mask, ceildiv
from tl_attention.problem.packed import TILE_WORDS
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

# Sequences begin before this row, and results of parts are in fewer places.
FARTHEST, MOST_PLACES = 1 << 20, 1 << 10
# How many problems each residue of seq_kv - seq_q has.
OF_RESIDUE = 4
LONGEST = 1 << 24, (1 << 31) - (1 << 20)
Array = np.ndarray


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
    variant: Variant
    many: Array
    in_turns: Array
    ats: list[Array] = field(default_factory=list)
    found_fields: list[Array] = field(default_factory=list)

    @classmethod
    def of(cls, schedule: Schedule, variant: Variant, rows: int, turns: int) -> DrawnTiles:
        draw = np.random.default_rng(37)
        problems = drawn(variant.mask, rows, schedule.block_N, variant.some_group)
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
        in_turns = np.where(draw.random(count) < 0.3, 1, draw.integers(1, of_results + 1))
        number = np.clip(number, 0, total - 1)
        many = np.where(draw.random(count) < 0.3, row_tiles, draw.integers(0, row_tiles + 1))
        return cls(sizes, row_tiles, number, fields, schedule.kernel.cluster, variant, many, in_turns)

    @property
    def heads(self) -> Array:
        """Returns how many heads tiles have."""
        return self.variant.heads_of_tiles(self.sizes.heads)

    @property
    def tiles_of_few(self) -> Array:
        """Returns how many tiles are of sequences of few queries."""
        return np.maximum(self.row_tiles - self.many, 0)

    @property
    def first_in_turns(self) -> Array:
        """Returns the first of the heads that take turns, tile by tile."""
        return np.maximum(self.heads - self.in_turns, 0)

    def number_of(self, row_tile: Array, head: Array, at: Array) -> Array:
        """Returns the numbers of the row tiles of these heads, in the problems `at`."""
        heads, few, first = self.heads[at], self.tiles_of_few[at], self.first_in_turns[at]
        many, of_many = self.row_tiles[at] - few, row_tile - few
        by_turns = first * many + of_many * (heads - first) + head - first
        behind = np.where(head < first, head * many + of_many, by_turns)
        return np.where(of_many < 0, row_tile * heads + head, few * heads + behind)

    def entry(self, number: Array) -> Array:
        """Returns the entry of the list of each problem's tile of this number."""
        many = np.maximum(self.row_tiles - self.tiles_of_few, 1)
        return entry_and_head(number, self.tiles_of_few, many, self.heads, self.first_in_turns)[0]

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

    def few(self, blocks: Array) -> Any:
        """Returns how many tiles of each block's problem are of sequences of few queries."""
        return self.tiles_of_few[blocks // self.cluster]

    def turns_from(self, blocks: Array) -> Any:
        """Returns the first of the heads that take turns."""
        return self.first_in_turns[blocks // self.cluster]

    def words(self, blocks: Array, entries: Array) -> Array:
        """Returns the numbers of these entries, (TILE_WORDS, blocks); raises Unsafe for one that is not a tile's."""
        cluster = blocks // self.cluster
        found = np.full((TILE_WORDS, len(blocks)), -1)
        for at, fields in zip(self.ats, self.found_fields):
            found = np.where(at[cluster] == entries, fields[:, cluster], found)
        if (found[2] < 0).any():
            raise Unsafe("it takes an entry of the list that is not its tile's")
        return found


def drawn(mask: Mask, rows: int, block_N: int, group: int) -> Problems:
    """Draws problems with every residue of seq_kv - seq_q modulo block_N, and with all kinds of batches and heads.

    Some problems have queries that stand before the first key, some have rows that see no key, and some have sequences
    of length 0. Equal arguments give equal problems. Tiles have `rows` rows; `group` heads of Q share one of K and V.
    """
    draw = np.random.default_rng(29)
    count = OF_RESIDUE * block_N
    past = np.arange(count) % block_N + block_N * draw.choice(
        [0, 1, 2, 3, 7, 1000, *(longest // block_N for longest in LONGEST)], count
    )
    seq_q = draw.choice(
        [1, max(0, rows - 3), rows, rows + 1, 2 * rows, 3 * rows, 9 * rows, 96 * rows, 8191 * rows], count
    )
    # Queries before the first key, up to all of them.
    past = np.where(draw.random(count) < 0.2, np.maximum(-seq_q, past - 3 * block_N), past)
    seq_kv = seq_q + past
    # No queries, on keys as before, and no keys.
    without = draw.random(count)
    seq_q, seq_kv = np.where(without < 0.02, 0, seq_q), np.where(without > 0.98, 0, seq_kv)
    batch = draw.choice([1, 2, 5, 9, 300, 20_000, GRID_YZ], count)
    heads = group * draw.choice([1, 2, 5, 9, 300, 3000, 20_000, GRID_YZ], count)
    most = np.minimum(LARGEST // np.maximum(np.maximum(seq_q, seq_kv), 1), GRID_YZ) // group * group
    heads = np.maximum(np.minimum(heads, most), group)
    tiles, pairs = (seq_q // 64 + 2) * heads, seq_q.astype(float) * seq_kv * heads
    batch = np.minimum(batch, np.minimum((LARGEST - ROOM) // tiles, PAIRS // np.maximum(pairs, 1)))
    return Problems(np.maximum(batch, 1).astype(int), heads, seq_q, seq_kv)
