"""The attention loop has four macros, which work on the buffers of a thread block."""

from dataclasses import dataclass

import tilelang.language as T

from tl_attention.kernels.shared.features import changed, own_values
from tl_attention.kernels.shared.rows import rows_of
from tl_attention.kernels.shared.softmax import finite


@dataclass(frozen=True)
class State:
    """State holds what a block's macros share under the name `s`, its tensors, tiles and fragments."""

    given: object
    own: object  # what features read of a head
    seq_q: object
    Q_shared: object
    K_shared: object
    V_shared: object
    acc_s: object
    acc_s_cast: object
    acc_o: object
    scores_max: object
    scores_max_prev: object
    scores_scale: object
    scores_sum: object
    denominator: object


@T.macro
def allocated(given, c):
    """Allocates a block's tiles in shared memory and its fragments, and returns them as a State."""
    Q_shared = T.alloc_shared([c.block_M, c.head_dim], c.dtype)
    K_shared = T.alloc_shared([c.block_N, c.head_dim], c.dtype)
    V_shared = T.alloc_shared([c.block_N, c.head_dim_v], c.dtype)
    acc_s = T.alloc_fragment([c.block_M, c.block_N], "float32")
    acc_s_cast = T.alloc_fragment([c.block_M, c.block_N], c.dtype)
    acc_o = T.alloc_fragment([c.block_M, c.head_dim_v], "float32")
    scores_max = T.alloc_fragment([c.block_M], "float32")
    scores_max_prev = T.alloc_fragment([c.block_M], "float32")
    scores_scale = T.alloc_fragment([c.block_M], "float32")
    scores_sum = T.alloc_fragment([c.block_M], "float32")
    denominator = T.alloc_fragment([c.block_M], "float32")
    own = own_values(c) if c.features.at("first", "last") else None
    return State(
        given=given,
        own=own,
        seq_q=given.Q.shape[2],
        Q_shared=Q_shared,
        K_shared=K_shared,
        V_shared=V_shared,
        acc_s=acc_s,
        acc_s_cast=acc_s_cast,
        acc_o=acc_o,
        scores_max=scores_max,
        scores_max_prev=scores_max_prev,
        scores_scale=scores_scale,
        scores_sum=scores_sum,
        denominator=denominator,
    )


@T.macro
def MMA0(K, bz, by, kv, first_row, past_len, s, c):
    """Loads KV block `kv` of K and computes acc_s = Q_shared @ K_shared^T, or -inf where the mask hides a key.

    These are the statements load_k, mask and mma0.
    """
    T.copy(rows_of(K, bz, by, kv * c.block_N, c.block_N, c, c.head_dim if c.narrow else None), s.K_shared)
    for i, j in T.Parallel(c.block_M, c.block_N):
        own_key = first_row + i + past_len
        s.acc_s[i, j] = T.if_then_else(
            c.mask.hidden(kv * c.block_N + j, own_key, K.shape[2], T), -T.infinity("float32"), 0
        )
    T.gemm(s.Q_shared, s.K_shared, s.acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)


@T.macro
def change_scores(kv, first_row, past_len, s, c):
    """Applies what features do to scores, such as softcap, to every element of acc_s that is not -inf."""
    for i, j in T.Parallel(c.block_M, c.block_N):
        s.acc_s[i, j] = T.if_then_else(
            s.acc_s[i, j] < T.min_value("float32"),
            s.acc_s[i, j],
            changed(s.acc_s[i, j], kv * c.block_N + j - (first_row + i + past_len), s, c),
        )


@T.macro
def Softmax(scale, s, c):
    """Computes acc_s_cast = exp2(scale (acc_s - scores_max)), with the new maxima, scores_scale and denominator.

    These are the statements max_prev to cast.
    """
    T.copy(s.scores_max, s.scores_max_prev)
    T.fill(s.scores_max, -T.infinity("float32"))
    T.reduce_max(s.acc_s, s.scores_max, dim=1, clear=False)
    for i in T.Parallel(c.block_M):
        s.scores_max[i] = T.max(s.scores_max[i], s.scores_max_prev[i])
    for i in T.Parallel(c.block_M):
        s.scores_scale[i] = T.exp2(s.scores_max_prev[i] * scale - finite(s.scores_max[i]) * scale)
    for i, j in T.Parallel(c.block_M, c.block_N):
        s.acc_s[i, j] = T.exp2(s.acc_s[i, j] * scale - finite(s.scores_max[i]) * scale)
    T.reduce_sum(s.acc_s, s.scores_sum, dim=1)
    for i in T.Parallel(c.block_M):
        s.denominator[i] = s.denominator[i] * s.scores_scale[i] + s.scores_sum[i]
    T.copy(s.acc_s, s.acc_s_cast)


@T.macro
def Rescale(s, c):
    """Multiplies the rows of acc_o by scores_scale, which is the statement rescale."""
    for i, j in T.Parallel(c.block_M, c.head_dim_v):
        s.acc_o[i, j] *= s.scores_scale[i]


@T.macro
def MMA1(V, bz, by, kv, s, c):
    """Loads KV block `kv` of V and computes acc_o += acc_s_cast @ V_shared.

    These are the statements load_v and mma1.
    """
    T.copy(rows_of(V, bz, by, kv * c.block_N, c.block_N, c, c.head_dim_v if c.narrow else None), s.V_shared)
    T.gemm(s.acc_s_cast, s.V_shared, s.acc_o, policy=T.GemmWarpPolicy.FullRow)


@T.macro
def store(Output, bz, by, first_row, s, c):
    """Stores acc_o / denominator as the tile's output rows."""
    for i, j in T.Parallel(c.block_M, c.head_dim_v):
        s.acc_o[i, j] /= s.denominator[i]
    # Q has been read for the last time: its buffer stages the output for the TMA store.
    if c.narrow or c.head_dim != c.head_dim_v:
        T.copy(s.acc_o, rows_of(Output, bz, by, first_row, c.block_M, c, c.head_dim_v))
    else:
        T.copy(s.acc_o, s.Q_shared)
        T.copy(s.Q_shared, rows_of(Output, bz, by, first_row, c.block_M, c))
