"""Problems of packed sequences at which the proof runs kernels with numbers, and the lists of their tiles.

Kernels take a list of tiles for granted, which a kernel before them writes: here it has other tiles, so that the place
of each shows, and parts of long tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.lengths import Lengths, ends
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import TILE_WORDS, PackedSizes, tile_list
from tl_attention.problem.variant import Variant

# A sequence between others.
EMPTY = Lengths(0, 7)
# A tile of so many is whole, and others have at most as many parts.
KINDS = 3
# Behind all KV blocks.
NO_END = (1 << 31) - 1
Array = np.ndarray


def packed_sizes(proof: Any, heads: int) -> Iterator[PackedSizes]:
    """Yields the sizes, of so many heads, at which a kernel is run with numbers: each length with the one before it.

    There is an empty one between. Where sequences may be split some are whole, and others have parts.
    """
    gap, before = 2 * proof.rows, Lengths(proof.rows + 1, proof.rows + 5)
    of_loops = ends(proof.program.span + 2, proof.rows, proof.schedule.block_N)
    for number, lengths in enumerate((*of_loops, Lengths(proof.rows, 0))):
        keys = sum(of.seq_kv for of in (lengths, EMPTY, before))
        yield PackedSizes.of(heads, [lengths, EMPTY, before], gap + (number - keys - gap) % KINDS)
        before = lengths


def whole_or_parts(tiles: Array, keys: int, variant: Variant, block_N: int) -> Array:
    """Returns the list's entries for these tiles (tiles, 5); with keys in parts, a tile may have an entry per part.

    Every third tile is whole. Others have their first two parts, and their last. The number of all keys says which come
    first.
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


def part_blocks(seq_kv: Any) -> Any:
    """Returns how many KV blocks a part of a sequence of a proof's problem has, by its number of keys.

    They are one to four, or five more, or as many more as a quarter or half of the keys has, at 128 a block.
    """
    kind = seq_kv // 4 % 3
    return 1 + seq_kv % 4 + (kind == 1) * 5 + (kind == 2) * (1 + seq_kv // 12 % 2) * (seq_kv // 512)


@dataclass(frozen=True)
class ListedTiles:
    """ListedTiles are a made-up list of a problem's tiles: all, then `many` of them again in another order."""

    entries: Array
    many: int
    heads: int
    in_turns: int

    @classmethod
    def of(cls, sizes: PackedSizes, proof: Any) -> ListedTiles:
        sizes = sizes if proof.rows_are_queries else sizes.exchanged
        once = tile_list(sizes.spans, proof.rows, proof.schedule.block_M)
        found = whole_or_parts(once, sizes.seq_kv, proof.code.variant, proof.schedule.block_N)
        variant = proof.code.variant
        heads = variant.heads_of_tiles(sizes.heads) if proof.rows_are_queries else sizes.heads // variant.some_group
        many = max(1, len(found) * (sizes.seq_kv % 4) // 3)
        return cls(np.concatenate([found, found[::-1][:many]]), many, heads, 1 + sizes.seq_kv % heads)

    @property
    def tiles_of_few(self) -> int:
        """Returns how many tiles count as those of sequences of few queries."""
        return len(self.entries) - 2 * self.many

    def count(self, blocks: Array) -> Any:
        """Returns how many tiles each head has."""
        return np.full(len(blocks), self.tiles_of_few + self.many)

    def few(self, blocks: Array) -> Any:
        """Returns how many tiles count as those of sequences of few queries."""
        return np.full(len(blocks), self.tiles_of_few)

    def turns_from(self, blocks: Array) -> Any:
        """Returns the first of the heads that take turns."""
        return np.full(len(blocks), self.heads - self.in_turns)

    def words(self, blocks: Array, entries: Array) -> Array:
        """Returns these entries' numbers, (TILE_WORDS, blocks); raises Unsafe for one that is not in the list."""
        if ((entries < 0) | (entries >= len(self.entries))).any():
            raise Unsafe(f"it takes entry {int(entries.max())} of the {len(self.entries)} that the list has")
        return self.entries[entries].T
