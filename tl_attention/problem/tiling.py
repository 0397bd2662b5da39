"""How a problem is cut into tiles: which KV blocks a row tile visits, in which order."""

from __future__ import annotations

from tl_attention.problem.shape import AttentionShape


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def row_tiles(shape: AttentionShape, block_M: int) -> int:
    """Row tiles of one head."""
    return ceildiv(shape.seq_q, block_M)


def kv_blocks(shape: AttentionShape, block_M: int, block_N: int, tile: int, at_least: int = 1) -> int:
    """KV blocks that row tile `tile` visits.

    Causal tiles stop at the diagonal. `at_least` pads short loops with blocks that are masked whole.
    """
    blocks = ceildiv(shape.seq_kv, block_N)
    if shape.causal:
        blocks = min(blocks, ceildiv((tile + 1) * block_M + shape.past_len, block_N))
    return max(blocks, at_least)


def kv_index(step: int, blocks: int, kv_order: str) -> int:
    """The KV block that loop step `step` works on."""
    return blocks - 1 - step if kv_order == "descending" else step
