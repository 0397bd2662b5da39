"""The lengths at which a kernel is proved and verified: each way in which a tile's rows and KV blocks end.

What is rounded shows at the edges of rounding: a whole number of tiles, and one more. Whatever is rounded down to nothing
shows at a length of 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from tl_attention.problem.mask import Mask


def ended_by_keys(blocks: int, block_N: int) -> tuple[int, int, int]:
    """So many KV blocks: the last one whole, ragged, and with a single key."""
    return blocks * block_N, blocks * block_N - block_N // 3, (blocks - 1) * block_N + 1


def ended_by_mask(most: int, rows: int, block_N: int, mask: Mask) -> Iterator[tuple[int, int]]:
    """(seq_q, seq_kv) at which the first `rows` rows see 1 to `most` KV blocks, of more than that; none for a full mask.

    Code that asks for the tile's own end in one place, and for that of all keys in another, shows where they differ.
    """
    if mask.right is None:
        return
    seq_kv = (most + 2) * block_N
    for blocks in range(1, most + 1):
        # The last key that the last row sees is the block's last, and the one before it the block's first.
        for last in (blocks * block_N - 1, (blocks - 1) * block_N):
            past_len = last + 1 - rows - mask.right
            if past_len + mask.right >= 0:
                yield seq_kv - past_len, seq_kv
