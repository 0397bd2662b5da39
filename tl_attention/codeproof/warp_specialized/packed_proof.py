"""Problems of packed sequences at which the proof runs kernels with numbers, and the lists of their tiles.

Kernels take a list of tiles for granted, which a kernel before them writes: here it has other tiles, so that the place of
each shows, and parts of long tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.lengths import Lengths, Problems, ends, part_blocks
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import TILE_WORDS, PackedSizes, listed
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
