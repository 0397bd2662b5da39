"""Packed sequences lie one behind the other in tensors (rows, heads, columns); a list of row tiles says where.

The list is made on the GPU, by a small kernel before the main one. Its arithmetic stands here too, for the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tl_attention.problem.mask import ceildiv

if TYPE_CHECKING:
    import numpy as np

# An entry of the list has so many numbers; so many stand before the first entry: how many entries there are, how many
# queries of split sequences, the most parts of one, and where the list of these queries begins. Behind these stand
# the first of the heads that take turns, tile by tile, and how many entries are of sequences of few queries.
TILE_WORDS, TURNS_FROM, FEW = 8, 5, 6
# The word of an entry that names its sequence in lists for gradients, whose tiles have all keys.
SEQUENCE = 7
# A query of a split sequence has these: its row of the output, the first of its tile's places, the number of parts, and
# its number in the tile.
QUERY_WORDS = 4
# What is told of a sequence while the list is made, where there are many, has so many.
SEQUENCE_WORDS = 4
# The least KV blocks of a part, the most row tiles of a sequence that is split, and the parts that have places for
# their results for each worker.
LEAST_BLOCKS, MOST_TILES, PARTS_OF_WORKER = 2, 8, 4
# In times of a KV block: what merging listed queries takes, and by how much of the longest item shares of all work are
# unequal.
MERGE_LISTED, UNEVEN = 4, 0.2
# Entries of the next tiles have so many places in shared memory, each with the tile's head behind the entry's numbers:
# warps read a tile's entry until they store the tile.
TILES_TOLD, TOLD_WORDS = 4, TILE_WORDS + 1


class SequenceSpan(NamedTuple):
    """A SequenceSpan says where a sequence lies: its first row of Q and its first key, and how many of each it has."""

    q_begin: int
    seq_q: int
    k_begin: int
    seq_kv: int

    @property
    def past_len(self) -> int:
        """Returns how many keys precede the first query."""
        return self.seq_kv - self.seq_q


class PackedSizes(NamedTuple):
    """PackedSizes are the sizes of a problem of packed sequences, in the place of Sizes."""

    batch: int
    heads: int
    seq_q: int  # of all sequences together
    seq_kv: int  # likewise
    spans: tuple[SequenceSpan, ...]

    @property
    def exchanged(self) -> PackedSizes:
        """Returns the sizes with queries in the place of keys, and keys in that of queries."""
        spans = tuple(SequenceSpan(*of[2:], *of[:2]) for of in self.spans)
        return self._replace(seq_q=self.seq_kv, seq_kv=self.seq_q, spans=spans)

    @classmethod
    def of(cls, heads: int, lengths: Sequence[tuple[int, int]], gap: int) -> PackedSizes:
        """Makes the sizes of packed sequences of these lengths, with `gap` unused rows between and behind them.

        `gap` rows stand behind the last.
        """
        places, q_begin, k_begin = [], 3, 5
        for number, (seq_q, seq_kv) in enumerate(lengths):
            places.append(SequenceSpan(q_begin, seq_q, k_begin, seq_kv))
            q_begin, k_begin = q_begin + seq_q + number % 3, k_begin + seq_kv + (number + 1) % 3
        return cls(len(places), heads, q_begin + gap, k_begin + gap, tuple(places))


def words_of_list(total_q: int, sequences: int, rows: int, places: int = 0) -> int:
    """Returns the largest length, in numbers, of the list of tiles of so many packed sequences.

    Each head may have results of parts in so many `places`. The list has two entries for each tile or part, one in
    each order, the queries whose parts are merged, and what stands before those of each sequence.
    """
    entries, queries = total_q // rows + sequences + places, min(total_q, places // 2 * rows) if places else 0
    return TILE_WORDS * (2 * entries + 1) + QUERY_WORDS * queries + SEQUENCE_WORDS * sequences


def places_of_parts(workers: int, heads: int) -> int:
    """Returns how many places each of so many heads of K has for parts' results, where so many blocks work at once."""
    return PARTS_OF_WORKER * workers // heads


def some_page_shift(key: Any, page_size: int, page_rows: int) -> Any:
    """Returns by how many rows a key is behind where it were if pages lay in the order of the block table.

    The table is one for proofs, in which no page is at its place. Keys may be an array.
    """
    entry = key // page_size
    return (3 * entry + 2) * page_rows - entry * page_size


def tile_list(places: Sequence[SequenceSpan], rows: int, block_M: int) -> np.ndarray:
    """Returns the list of tiles of `rows` rows as integers (number of tiles, 5), sequence by sequence.

    An entry has the tile's first row in units of block_M, and the SequenceSpan.
    """
    # numpy is imported late: light commands import this file.
    import numpy as np

    entries = [(row // block_M, *of) for of in places for row in range(0, ceildiv(of.seq_q, rows) * rows, rows)]
    return np.array(entries, dtype=np.int64).reshape(-1, 5)
