"""What a warpgroup writes: its 64 rows of the output."""

from types import SimpleNamespace

import tilelang.language as T

from tl_attention.hardware.warpgroup import OWN, ROWS, WARPGROUP
from tl_attention.lowering.device_code import is_bf16
from tl_attention.lowering.features import at_totals
from tl_attention.lowering.warp_specialized.rings import release_q


@T.macro
def store(first_row, head, bz, wg, s, c):
    """Output = acc_o / denominator."""
    if c.softmax.row_sum == "thread":
        T.reduce_sum(s.denominator, s.scores_scale, dim=1)
        if c.features.at_totals:
            at_totals(rows_of(s.scores_scale, bz, head, first_row, s), s, c)
        for i in T.Parallel(ROWS):
            s.scores_scale[i] = 1.0 / s.scores_scale[i]
    else:
        if c.features.at_totals:
            at_totals(rows_of(s.denominator, bz, head, first_row, s), s, c)
        for i in T.Parallel(ROWS):
            s.scores_scale[i] = 1.0 / s.denominator[i]
    if c.features.rescales:
        for i in T.Parallel(ROWS):
            s.scores_scale[i] *= s.scores_max_prev[i]
    for i, j in T.Parallel(ROWS, c.head_dim_v):
        s.acc_o[i, j] *= s.scores_scale[i]
    STORES["strided" if c.strided and c.kernel.output == "vector" else c.kernel.output](first_row, head, bz, wg, s, c)


def rows_of(total, bz, head, first_row, s):
    """The warpgroup's rows, and their totals, for what features do with them."""
    return SimpleNamespace(
        count=ROWS,
        scale=s.scale,
        total=total,
        maxima=s.scores_max.data,
        totals=total.data,
        bz=bz,
        head=head,
        first_row=first_row,
    )


@T.macro
def store_vector(first_row, head, bz, wg, s, c):
    """16 bytes a lane: lanes exchange what they hold."""
    T.call_extern(
        "handle",
        stored_columns(c),
        s.acc_o.data,
        T.address_of(s.given.Output[bz, head, first_row, 0]),
        s.seq_q - first_row,
    )


def stored_columns(c):
    """The device function that stores as many columns as the tile has, or fewer for a tensor that is narrower."""
    if c.columns_v == c.head_dim_v:
        return f"tl_attention_store<{c.head_dim_v}, {is_bf16(c)}>"
    return f"tl_attention_store_columns<{c.columns_v}, {is_bf16(c)}>"


@T.macro
def store_strided(first_row, head, bz, wg, s, c):
    """16 bytes a lane, to rows that are as far apart as the output's stride says."""
    T.call_extern(
        "handle",
        stored_columns(c),
        s.acc_o.data,
        T.address_of(s.given.Output[bz, head, first_row, 0]),
        s.seq_q - first_row,
        s.given.Output.strides[2],
    )


@T.macro
def store_direct(first_row, head, bz, wg, s, c):
    """The 4 bytes that a lane holds of a row and eight columns."""
    for i, j in T.Parallel(ROWS, c.head_dim_v):
        if first_row + i < s.seq_q and (c.columns_v == c.head_dim_v or j < c.columns_v):
            s.given.Output[bz, head, first_row + i, j] = s.acc_o[i, j]


@T.macro
def store_tma(first_row, head, bz, wg, s, c):
    """Through the rows of Q_shared, which are free after that."""
    T.copy(s.acc_o, s.Q.shared[wg, :, :])
    T.fence_proxy_async()
    T.sync_threads(OWN + wg, WARPGROUP)
    if c.columns_v < c.head_dim_v:
        T.tma_copy(s.Q.shared[wg, :, :], s.given.Output[bz, head, first_row : first_row + ROWS, 0 : c.head_dim_v])
    else:
        T.tma_copy(s.Q.shared[wg, :, :], s.given.Output[bz, head, first_row : first_row + ROWS, :])
    T.tma_store_wait(0)
    T.sync_threads(OWN + wg, WARPGROUP)
    release_q(wg, s)


STORES = {"direct": store_direct, "vector": store_vector, "strided": store_strided, "tma": store_tma}
