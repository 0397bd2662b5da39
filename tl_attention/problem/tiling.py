"""How a problem is cut into tiles: which KV blocks a row tile visits, in which order."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

from tl_attention.problem.shape import AttentionShape


def ceildiv(a: Any, b: Any) -> Any:
    """The quotient rounded up, of integers and of arrays of them."""
    return -(-a // b)


# Python's arithmetic under the names that a mask asks for.
INTEGERS = SimpleNamespace(min=min, max=max, ceildiv=ceildiv, Or=operator.or_)


def row_tiles(shape: AttentionShape, block_M: int) -> int:
    """Row tiles of one head."""
    return ceildiv(shape.seq_q, block_M)


def kv_blocks(shape: AttentionShape, block_M: int, block_N: int, tile: int, at_least: int = 1) -> range:
    """The KV blocks that row tile `tile` visits, those up to the last that it needs.

    `at_least` pads short loops with later blocks, which are masked whole.
    """
    first_key = tile * block_M + shape.past_len
    first = shape.mask.first_block(first_key, block_N, INTEGERS)
    end = shape.mask.end_block(ceildiv(shape.seq_kv, block_N), first_key + block_M, block_N, INTEGERS)
    return range(first, max(end, first + at_least))


def kv_index(step: int, blocks: range, kv_order: str) -> int:
    """The KV block that loop step `step` works on."""
    return blocks[-1 - step] if kv_order == "descending" else blocks[step]


def visited_over_visible(shape: AttentionShape, rows: int, block_N: int, at_least: int = 1) -> float:
    """(query, key) pairs that tiles of `rows` rows, a cluster's together, compute over those that are not hidden."""
    blocks = sum(len(kv_blocks(shape, rows, block_N, tile, at_least)) for tile in range(row_tiles(shape, rows)))
    return blocks * rows * block_N / shape.pairs
