"""What a warpgroup writes: its 64 rows of the output."""

import tilelang.language as T

from tl_attention.hardware.warpgroup import OWN, ROWS, WARPGROUP
from tl_attention.lowering.device_code import is_bf16
from tl_attention.lowering.features import Totals, at_totals
from tl_attention.lowering.rows import element_of, rows_of
from tl_attention.lowering.warp_specialized.rings import release_q


@T.macro
def store(tile, s, c):
    """Output = acc_o / denominator."""
    if c.softmax.row_sum == "thread":
        T.reduce_sum(s.denominator, s.scores_scale, dim=1)
        if c.features.at_totals:
            at_totals(totals_of(s.scores_scale, tile, s), s, c)
        for i in T.Parallel(ROWS):
            s.scores_scale[i] = 1.0 / s.scores_scale[i]
    else:
        if c.features.at_totals:
            at_totals(totals_of(s.denominator, tile, s), s, c)
        for i in T.Parallel(ROWS):
            s.scores_scale[i] = 1.0 / s.denominator[i]
    if c.features.rescales:
        for i in T.Parallel(ROWS):
            s.scores_scale[i] *= s.scores_max_prev[i]
    for i, j in T.Parallel(ROWS, c.head_dim_v):
        s.acc_o[i, j] *= s.scores_scale[i]
    STORES["strided" if c.strided and c.kernel.output == "vector" else c.kernel.output](tile, s, c)


def totals_of(total, tile, s):
    """The warpgroup's rows, and their totals, for what features do with them."""
    return Totals(
        s.scale, s.scores_max.data, total.data, tile.batch, tile.head, tile.first_row, count=ROWS, total=total
    )


@T.macro
def store_vector(tile, s, c):
    """16 bytes a lane: lanes exchange what they hold."""
    T.call_extern(
        "handle",
        stored_columns(c),
        s.acc_o.data,
        T.address_of(element_of(s.given.Output, tile.batch, tile.head, tile.first_row)),
        s.seq_q - tile.first_row,
    )


def stored_columns(c):
    """The device function that stores as many columns as the tile has, or fewer for a tensor that is narrower."""
    if c.columns_v == c.head_dim_v:
        return f"tl_attention_store<{c.head_dim_v}, {is_bf16(c)}>"
    return f"tl_attention_store_columns<{c.columns_v}, {is_bf16(c)}>"


@T.macro
def store_strided(tile, s, c):
    """16 bytes a lane, to rows that are as far apart as the output's stride says."""
    T.call_extern(
        "handle",
        stored_columns(c),
        s.acc_o.data,
        T.address_of(element_of(s.given.Output, tile.batch, tile.head, tile.first_row)),
        s.seq_q - tile.first_row,
        s.given.Output.strides[2],
    )


@T.macro
def store_direct(tile, s, c):
    """The 4 bytes that a lane holds of a row and eight columns."""
    for i, j in T.Parallel(ROWS, c.head_dim_v):
        if tile.first_row + i < s.seq_q and (c.columns_v == c.head_dim_v or j < c.columns_v):
            s.given.Output[tile.batch, tile.head, tile.first_row + i, j] = s.acc_o[i, j]


@T.macro
def store_tma(tile, s, c):
    """Through the rows of Q_shared, which are free after that."""
    T.copy(s.acc_o, s.Q.shared[tile.wg, :, :])
    T.fence_proxy_async()
    T.sync_threads(OWN + tile.wg, WARPGROUP)
    columns = c.head_dim_v if c.columns_v < c.head_dim_v else None
    T.tma_copy(s.Q.shared[tile.wg, :, :], rows_of(s.given.Output, tile.batch, tile.head, tile.first_row, ROWS, columns))
    T.tma_store_wait(0)
    T.sync_threads(OWN + tile.wg, WARPGROUP)
    release_q(tile.wg, s)


STORES = {"direct": store_direct, "vector": store_vector, "strided": store_strided, "tma": store_tma}
