"""These are the bytes that an attention forward must move, and those that its tiles move, to hold GPU counters to."""

from __future__ import annotations

from dataclasses import dataclass

from tl_attention.problem.head_dims import tile_dim
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.shape import DTYPE_BYTES, AttentionShape
from tl_attention.problem.tiling import kv_blocks

LSE_BYTES = 4


@dataclass(frozen=True)
class Tiling:
    """A Tiling holds what a kernel's memory traffic depends on, tiles of block_M queries and blocks of block_N keys."""

    block_M: int
    block_N: int
    cluster: int = 1  # tiles of neighbouring rows that share each load of K and V, and so visit the same blocks
    least_blocks: int = 1  # KV blocks that a tile visits at least
    # Whether a load past the end of a tensor counts whole. TMA's boxes do: ncu counts the rows beyond the last key on
    # an H200 as if they were there, and rows of Q and columns are taken to be no other. cp.async is told how much
    # there is, and fetches no more.
    whole_boxes: bool = False


def input_bytes(shape: AttentionShape) -> int:
    """Returns the bytes of Q, K and V, each once, which is the least that can be read from DRAM.

    That is 2 x batch x (heads x seq_q x head_dim + heads_kv x seq_kv x (head_dim + head_dim_v)). Sinks, which take
    4 bytes a head, are left out.
    """
    rows, keys = shape.totals
    of_q = shape.heads * rows * shape.head_dim
    of_kv = shape.heads_kv * keys * (shape.head_dim + shape.head_dim_v)
    return DTYPE_BYTES * (of_q + of_kv)


def output_bytes(shape: AttentionShape) -> int:
    """Returns the bytes of the output once, and of the LSE where it is asked for.

    That is 2 x batch x heads x seq_q x head_dim_v, and 4 for each row's LSE.
    """
    row = DTYPE_BYTES * shape.head_dim_v + (LSE_BYTES if "lse" in shape.asked else 0)
    return shape.heads * shape.totals[0] * row


def l2_bytes(shape: AttentionShape, tiling: Tiling) -> int:
    """Returns the bytes that the SMs read from L2, where a load that a cluster shares counts once.

    That is 2 x batch x heads x (rows of Q x head_dim + keys x (head_dim + head_dim_v)): each tile's rows once, and for
    each cluster the keys of the KV blocks that it visits.
    """
    return _loaded(shape, tiling, times=1)


def sm_bytes(shape: AttentionShape, tiling: Tiling) -> int:
    """Returns the bytes that arrive in the SMs, where a load that a cluster shares counts once for each of its tiles.

    All else is as in `read_from_l2`.
    """
    return _loaded(shape, tiling, times=tiling.cluster)


def _loaded(shape: AttentionShape, tiling: Tiling, times: int) -> int:
    if shape.lengths:
        return sum(_loaded(shape.sequence(n), tiling, times) for n in range(shape.batch))
    rows_of_cluster = tiling.block_M * tiling.cluster
    clusters = ceildiv(shape.seq_q, rows_of_cluster)
    keys = sum(_keys(shape, tiling, rows_of_cluster, number) for number in range(clusters))
    rows, head_dim, head_dim_v = shape.seq_q, shape.head_dim, shape.head_dim_v
    if tiling.whole_boxes:
        rows, head_dim, head_dim_v = clusters * rows_of_cluster, tile_dim(head_dim), tile_dim(head_dim_v)
    of_head = rows * head_dim + times * keys * (head_dim + head_dim_v)
    return DTYPE_BYTES * shape.batch * shape.heads * of_head


def _keys(shape: AttentionShape, tiling: Tiling, rows: int, number: int) -> int:
    """Returns how many keys cluster `number` loads, where each cluster has `rows` rows."""
    blocks = kv_blocks(shape, rows, tiling.block_N, number, tiling.least_blocks)
    first, end = blocks.start * tiling.block_N, blocks.stop * tiling.block_N
    return end - first if tiling.whole_boxes else max(min(end, shape.seq_kv) - first, 0)
