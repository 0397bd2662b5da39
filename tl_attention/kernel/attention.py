"""FlashAttention forward as a TileLang program: four macros inside `T.Pipelined`.

Online softmax as in FlashAttention-2 (Dao, 2023, algorithm 1), in base 2: exp(x) = exp2(x log2 e).
"""

import tilelang.language as T

LOG2_E = 1.4426950408889634


@T.macro
def MMA0(K, Q_shared, K_shared, acc_s, bz, by, first_row, kv, seq_kv, past_len, causal):
    """acc_s = Q_shared @ K_shared^T, -inf where masked. Statements load_k, mask, mma0."""
    block_M, block_N = acc_s.shape
    T.copy(K[bz, by, kv * block_N : (kv + 1) * block_N, :], K_shared)
    for i, j in T.Parallel(block_M, block_N):
        hidden = kv * block_N + j >= seq_kv
        if causal:
            hidden = T.Or(hidden, kv * block_N + j > first_row + i + past_len)
        acc_s[i, j] = T.if_then_else(hidden, -T.infinity(acc_s.dtype), 0)
    T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)


@T.macro
def Softmax(acc_s, acc_s_cast, scores_max, scores_max_prev, scores_scale, scores_sum, logsum, scale):
    """acc_s_cast = exp2(scale (acc_s - scores_max)), scores_scale and logsum with it. Statements max_prev to cast."""
    block_M, block_N = acc_s.shape
    T.copy(scores_max, scores_max_prev)
    T.fill(scores_max, -T.infinity(scores_max.dtype))
    T.reduce_max(acc_s, scores_max, dim=1, clear=False)
    for i in T.Parallel(block_M):
        scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
    for i in T.Parallel(block_M):
        scores_scale[i] = T.exp2(scores_max_prev[i] * scale - finite(scores_max[i]) * scale)
    for i, j in T.Parallel(block_M, block_N):
        acc_s[i, j] = T.exp2(acc_s[i, j] * scale - finite(scores_max[i]) * scale)
    T.reduce_sum(acc_s, scores_sum, dim=1)
    for i in T.Parallel(block_M):
        logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
    T.copy(acc_s, acc_s_cast)


@T.macro
def Rescale(acc_o, scores_scale):
    """acc_o *= scores_scale. Statement rescale."""
    for i, j in T.Parallel(*acc_o.shape):
        acc_o[i, j] *= scores_scale[i]


@T.macro
def MMA1(V, V_shared, acc_s_cast, acc_o, bz, by, kv):
    """acc_o += acc_s_cast @ V_shared. Statements load_v, mma1."""
    block_N = V_shared.shape[0]
    T.copy(V[bz, by, kv * block_N : (kv + 1) * block_N, :], V_shared)
    T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)


def finite(scores_max):
    """0 for a row that has seen no key yet: its maximum is -inf, and -inf - -inf would be NaN."""
    return T.if_then_else(scores_max == -T.infinity("float32"), T.float32(0), scores_max)


def kv_block(step, blocks, descending):
    """The KV block of a loop step, as an expression: a name for it would be one more statement of the loop."""
    return blocks - 1 - step if descending else step


def attention_kernel(
    *, head_dim, dtype, causal, block_M, block_N, threads, pipeline, least_blocks, descending=False, sizes=None
):
    """The prim_func attention(Q, K, V, Output, softmax_scale).

    Q and Output are (batch, heads, seq_q, head_dim), K and V (batch, heads, seq_kv, head_dim), contiguous, `dtype`
    float16 or bfloat16; products accumulate in float32. `sizes` fixes (batch, heads, seq_q, seq_kv); without it they
    are read at run time. `pipeline` goes to T.Pipelined. `least_blocks` lengthens short loops by masked blocks.
    """
    batch, heads, seq_q, seq_kv = sizes or T.dynamic("batch, heads, seq_q, seq_kv")
    accum_dtype = "float32"

    @T.prim_func
    def attention(
        Q: T.Tensor([batch, heads, seq_q, head_dim], dtype),
        K: T.Tensor([batch, heads, seq_kv, head_dim], dtype),
        V: T.Tensor([batch, heads, seq_kv, head_dim], dtype),
        Output: T.Tensor([batch, heads, seq_q, head_dim], dtype),
        softmax_scale: T.float32,
    ):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, head_dim], dtype)
            K_shared = T.alloc_shared([block_N, head_dim], dtype)
            V_shared = T.alloc_shared([block_N, head_dim], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, head_dim], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)

            first_row = bx * block_M
            past_len = seq_kv - seq_q
            scale = softmax_scale * LOG2_E
            blocks = T.ceildiv(seq_kv, block_N)
            if causal:
                blocks = T.min(blocks, T.ceildiv(first_row + block_M + past_len, block_N))
            blocks = T.max(blocks, least_blocks)

            T.copy(Q[bz, by, first_row : first_row + block_M, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity(accum_dtype))
            for k in T.Pipelined(blocks, **pipeline):
                MMA0(
                    K, Q_shared, K_shared, acc_s, bz, by, first_row, kv_block(k, blocks, descending), seq_kv, past_len,
                    causal,
                )
                Softmax(acc_s, acc_s_cast, scores_max, scores_max_prev, scores_scale, scores_sum, logsum, scale)
                Rescale(acc_o, scores_scale)
                MMA1(V, V_shared, acc_s_cast, acc_o, bz, by, kv_block(k, blocks, descending))
            for i, j in T.Parallel(block_M, head_dim):
                acc_o[i, j] /= logsum[i]
            # Q has been read for the last time: its buffer stages the output for the TMA store.
            T.copy(acc_o, Q_shared)
            T.copy(Q_shared, Output[bz, by, first_row : first_row + block_M, :])

    return attention
