"""The four macros of the attention loop, and what the kernels share.

Online softmax as in FlashAttention-2 (Dao, 2023, algorithm 1), in base 2: exp(x) = exp2(x log2 e).
"""

import tilelang.language as T

LOG2_E = 1.4426950408889634


@T.macro
def MMA0(K, Q_shared, K_shared, acc_s, bz, by, first_row, kv, seq_kv, past_len, mask):
    """acc_s = Q_shared @ K_shared^T, -inf where masked. Statements load_k, mask, mma0."""
    block_M, block_N = acc_s.shape
    T.copy(K[bz, by, kv * block_N : (kv + 1) * block_N, :], K_shared)
    for i, j in T.Parallel(block_M, block_N):
        hidden = mask.hidden(kv * block_N + j, first_row + i + past_len, seq_kv, T)
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
