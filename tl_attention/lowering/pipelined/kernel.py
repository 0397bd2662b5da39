"""FlashAttention forward: the four macros inside `T.Pipelined`, which places the waits."""

from types import SimpleNamespace

import tilelang.language as T

from tl_attention.lowering.pipelined.macros import MMA0, MMA1, Rescale, Softmax, allocated, store
from tl_attention.lowering.signature import takes
from tl_attention.lowering.softmax import LOG2_E
from tl_attention.problem.variant import Sizes


def attention_kernel(*, variant, block_M, block_N, threads, pipeline, least_blocks, descending):
    """The prim_func: Output = softmax(softmax_scale Q K^T) V, with products accumulated in float32."""
    c = SimpleNamespace(
        block_M=block_M,
        block_N=block_N,
        head_dim=variant.head_dim,
        head_dim_v=variant.head_dim_v,
        dtype=variant.dtype,
        mask=variant.mask,
    )
    batch, heads, seq_q, seq_kv = variant.sizes or T.dynamic(", ".join(Sizes._fields))

    @T.prim_func
    @takes(variant.parameters(), variant, Sizes(batch, heads, seq_q, seq_kv))
    def attention(Q, K, V, Output, softmax_scale):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, by, bz):
            s = allocated(c)
            first_row = bx * block_M
            past_len = seq_kv - seq_q
            scale = softmax_scale * LOG2_E
            blocks = c.mask.end_block(T.ceildiv(seq_kv, block_N), first_row + block_M + past_len, block_N, T)
            if c.mask.left is not None:
                first = c.mask.first_block(first_row + past_len, block_N, T)
            # Short loops get blocks that are masked whole.
            blocks = T.max(blocks if c.mask.left is None else blocks - first, least_blocks)
            T.copy(Q[bz, by, first_row : first_row + block_M, :], s.Q_shared)
            T.fill(s.acc_o, 0)
            T.fill(s.denominator, 0)
            T.fill(s.scores_max, -T.infinity("float32"))
            for k in T.Pipelined(blocks, **pipeline):
                MMA0(
                    K,
                    bz,
                    by,
                    kv_block(k, None if c.mask.left is None else first, blocks, descending),
                    first_row,
                    past_len,
                    s,
                    c,
                )
                Softmax(scale, s, c)
                Rescale(s, c)
                MMA1(V, bz, by, kv_block(k, None if c.mask.left is None else first, blocks, descending), s, c)
            store(Output, bz, by, first_row, s, c)

    return attention


def kv_block(step, first, blocks, descending):
    """The KV block of a loop step, as an expression: a name for it would be one more statement of the loop."""
    if first is not None:
        return first + blocks - 1 - step if descending else first + step
    return blocks - 1 - step if descending else step
