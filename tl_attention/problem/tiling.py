"""A problem is cut into tiles: a row tile visits some KV blocks, in some order, and some of these need no mask."""

from __future__ import annotations

from typing import Any

from tl_attention.problem.mask import INTEGERS, Mask, ceildiv
from tl_attention.problem.shape import AttentionShape

# Times in those in which a thread block computes a KV block: a tile begins and ends, and another kernel merges parts.
TILE, MERGE, MERGE_PART = 1.5, 2.5, 0.03
# K and V of the heads of a section fit in the L2 cache of an H100 (50 MB) beside everything else.
SECTION_BYTES = 32 << 20
# At most so many tiles for each worker are taken from the last heads together, the longest first.
TAPER = 4


def row_tiles(shape: AttentionShape, block_M: int) -> int:
    """Returns how many tiles of block_M rows one head has."""
    return ceildiv(shape.seq_q, block_M)


def visited_blocks(
    of: Any, mask: Mask, first_row: Any, rows: int, block_N: int, at_least: int = 1, ops: Any = INTEGERS
) -> tuple[Any, Any]:
    """Returns (first, end) of the KV blocks that `rows` rows from `first_row` on visit.

    The rows visit the blocks that they need, and so many later ones that there are `at_least` blocks: later blocks pad
    a short loop, and are masked whole. `of` has the sequence's lengths. The arguments are integers, or arrays with
    their `ops`.
    """
    first_key = first_row + of.past_len
    first = mask.first_block(first_key, block_N, ops) + 0 * first_key
    end = mask.end_block(ceildiv(of.seq_kv, block_N), first_key + rows, block_N, ops)
    return first, ops.max(end, first + at_least)


def whole_blocks(of: Any, mask: Mask, first_row: Any, rows: int, block_N: int, ops: Any = INTEGERS) -> tuple[Any, Any]:
    """Returns (first, end) of the KV blocks of which all of the `rows` rows from `first_row` on see every key."""
    first_key = first_row + of.past_len
    first = mask.first_whole(first_key + rows, block_N, ops)
    return first, mask.end_whole(of.seq_kv // block_N, first_key, block_N, ops)


def kv_blocks(shape: AttentionShape, block_M: int, block_N: int, tile: int, at_least: int = 1) -> range:
    """Returns the range of KV blocks, `at_least` or more, that row tile number `tile` of block_M rows visits."""
    return range(*visited_blocks(shape, shape.mask, tile * block_M, block_M, block_N, at_least))


def kv_index(step: int, blocks: range, kv_order: str) -> int:
    """Returns the KV block that loop step `step` works on, from the last of `blocks` down if kv_order is descending."""
    return blocks[-1 - step] if kv_order == "descending" else blocks[step]


def visited_over_visible(shape: AttentionShape, rows: int, block_N: int, at_least: int = 1) -> float:
    """Returns how many (query, key) pairs a sequence's tiles compute, divided by how many pairs are not hidden.

    Tiles have `rows` rows; the tiles of a cluster count together.
    """
    if shape.lengths:
        alone = [shape.sequence(n) for n in range(shape.batch)]
        pairs = sum(
            visited_over_visible(one, rows, block_N, at_least) * one.mask.pairs(one.seq_q, one.seq_kv)
            for one in alone
            if one.mask.pairs(one.seq_q, one.seq_kv)
        )
        return pairs / shape.pairs
    blocks = sum(len(kv_blocks(shape, rows, block_N, tile, at_least)) for tile in range(row_tiles(shape, rows)))
    return blocks * rows * block_N / shape.mask.pairs(shape.seq_q, shape.seq_kv)


def taper(head_dim: int, head_dim_v: int) -> int:
    """Returns how many tiles per worker are taken from the last heads together, fewer where K and V are wide.

    More than 256 columns of K and V together would leave the L2 cache.
    """
    return min(TAPER, TAPER * 256 // (head_dim + head_dim_v))
