"""FlashAttention forward as a TileLang program: four macros inside `T.Pipelined`."""

import tilelang.language as T

from tl_attention.lowering.macros import LOG2_E, MMA0, MMA1, Rescale, Softmax, kv_block
from tl_attention.lowering.signature import takes
from tl_attention.problem.variant import Sizes


def attention_kernel(*, variant, block_M, block_N, threads, pipeline, least_blocks, descending=False):
    """The prim_func of the variant, whose KERNEL_PARAMETERS it takes; products accumulate in float32.

    `pipeline` goes to T.Pipelined. `least_blocks` lengthens short loops by masked blocks.
    """
    head_dim, head_dim_v, dtype, mask = variant.head_dim, variant.head_dim_v, variant.dtype, variant.mask
    sizes = variant.sizes or Sizes(*T.dynamic(", ".join(Sizes._fields)))
    batch, heads, seq_q, seq_kv = sizes
    accum_dtype = "float32"

    @T.prim_func
    @takes(variant.parameters(), variant, sizes)
    def attention(Q, K, V, Output, softmax_scale):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, head_dim], dtype)
            K_shared = T.alloc_shared([block_N, head_dim], dtype)
            V_shared = T.alloc_shared([block_N, head_dim_v], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, head_dim_v], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)

            first_row = bx * block_M
            past_len = seq_kv - seq_q
            scale = softmax_scale * LOG2_E
            blocks = mask.end_block(T.ceildiv(seq_kv, block_N), first_row + block_M + past_len, block_N, T)
            blocks = T.max(blocks, least_blocks)

            T.copy(Q[bz, by, first_row : first_row + block_M, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            for k in T.Pipelined(blocks, **pipeline):
                MMA0(
                    K,
                    Q_shared,
                    K_shared,
                    acc_s,
                    bz,
                    by,
                    first_row,
                    kv_block(k, blocks, descending),
                    seq_kv,
                    past_len,
                    mask,
                )
                Softmax(acc_s, acc_s_cast, scores_max, scores_max_prev, scores_scale, scores_sum, logsum, scale)
                Rescale(acc_o, scores_scale)
                MMA1(V, V_shared, acc_s_cast, acc_o, bz, by, kv_block(k, blocks, descending))
            for i, j in T.Parallel(block_M, head_dim_v):
                acc_o[i, j] /= logsum[i]
            # Q has been read for the last time: its buffer stages the output for the TMA store.
            T.copy(acc_o, Q_shared)
            T.copy(Q_shared, Output[bz, by, first_row : first_row + block_M, :])

    return attention
