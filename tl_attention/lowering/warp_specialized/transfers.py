"""Tiles move between global and shared memory here: rings of buffers, the producer warp's loads by TMA, a warpgroup's stores.

The producer warp loads as far ahead as the rings allow.

Load number `step` of a ring is in slot step % depth. The phase of a full barrier ends when a load has arrived, that of an
empty one when all have read it.
"""

import tilelang.language as T

from tl_attention.hardware.warpgroup import OWN, ROWS, WARP, WARPGROUP
from tl_attention.lowering.device_code import is_bf16
from tl_attention.lowering.features import Totals, at_totals
from tl_attention.lowering.rows import kv_head, rows_of, stored


def slot(ring, step):
    """Returns the slot of load number `step`."""
    return step % ring.depth


def parity(ring, step):
    """Returns the parity of the phase that load number `step` is in: even or odd laps of the ring."""
    return step // ring.depth % 2


def wait_full(ring, step):
    """Waits until load number `step` has arrived."""
    return T.mbarrier_wait_parity(ring.full[slot(ring, step)], parity(ring, step))


def wait_empty(ring, step):
    """Waits until the slot of load number `step` is empty; at first it is."""
    return T.mbarrier_wait_parity(ring.empty[slot(ring, step)], parity(ring, step) ^ 1)


@T.macro
def release(ring, at, c):
    """Arrives once per warp, whose lanes have waited together, at each block that a load into the slot writes."""
    if T.shuffle_elect(WARP):
        if c.kernel.cluster == 1:
            T.mbarrier_arrive(ring.empty[at])
        else:
            for rank in T.unroll(c.kernel.cluster):
                T.ptx_arrive_cluster_barrier(ring.empty[at], rank)


@T.macro
def release_q(wg, s):
    """Arrives once per warp: its warpgroup's rows of Q_shared are free."""
    if T.shuffle_elect(WARP):
        T.mbarrier_arrive(s.Q.empty[wg])


@T.macro
def produce(tile, s, c):
    """Loads one tile. Q comes after the first blocks: its buffer is free later than theirs."""
    for j in T.serial(tile.blocks):
        for name in c.loop.loads:
            LOADS[name](j, tile, s, c)
        if j == 0:
            for wg in range(c.block_M // ROWS):
                load_q(wg, tile, s, c)


@T.macro
def load_k(j, tile, s, c):
    load(s.K, tile.base + j, block(j, tile, c), tile, c)


@T.macro
def load_v(j, tile, s, c):
    load(s.V, tile.base + j, block(j, tile, c), tile, c)


LOADS = {"load_k": load_k, "load_v": load_v}


def block(j, tile, c):
    """Returns the KV block that comes j-th."""
    return tile.blocks - 1 - j if c.mask.left is None else tile.first + tile.blocks - 1 - j


@T.macro
def load(ring, step, kv, tile, c):
    """Starts load number `step`: KV block `kv`, as soon as its slot is free."""
    wait_empty(ring, step)
    # As many columns as the tile has, where the tensor has fewer.
    columns = ring.shared.shape[2] if c.narrow else None
    head = kv_head(tile.head, c)
    T.tma_copy(
        rows_of(ring.source, tile.batch, head, kv * c.block_N, c.block_N, columns),
        ring.shared[slot(ring, step), :, :],
        barrier=ring.full[slot(ring, step)],
        leader_scope_threads=WARP,
        **multicast(c),
    )
    T.mbarrier_arrive(ring.full[slot(ring, step)])


def multicast(c):
    """Lets all blocks of a cluster expect the bytes of every load, which the first of them issues for all."""
    return {"cluster_mask": 2**c.kernel.cluster - 1} if c.kernel.cluster > 1 else {}


@T.macro
def load_q(wg, tile, s, c):
    """Loads a warpgroup's rows of Q."""
    T.mbarrier_wait_parity(s.Q.empty[wg], tile.turn % 2 ^ 1)
    columns = c.head_dim if c.narrow else None
    T.tma_copy(
        rows_of(s.Q.source, tile.batch, tile.head, tile.first_row + wg * ROWS, ROWS, columns),
        s.Q.shared[wg, :, :],
        barrier=s.Q.full[wg],
        leader_scope_threads=WARP,
    )
    T.mbarrier_arrive(s.Q.full[wg])


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
    STORES[c.kernel.output](tile, s, c)


def totals_of(total, tile, s):
    """Returns the warpgroup's rows, and their totals, for features to act on."""
    return Totals(
        s.scale, s.scores_max.data, total.data, tile.batch, tile.head, tile.first_row, count=ROWS, total=total
    )


@T.macro
def store_vector(tile, s, c):
    """Stores 16 bytes a lane: lanes exchange what they hold."""
    T.call_extern("handle", stored_columns(c), *stored(s.acc_o.data, tile.first_row, tile, s, c))


def stored_columns(c):
    """Returns the device function that stores as many columns as the tile has, or fewer for a tensor that is narrower."""
    if c.columns_v == c.head_dim_v:
        return f"tl_attention_store<{c.head_dim_v}, {is_bf16(c)}>"
    return f"tl_attention_store_columns<{c.columns_v}, {is_bf16(c)}>"


@T.macro
def store_direct(tile, s, c):
    """Stores the 4 bytes that a lane holds of a row and eight columns."""
    for i, j in T.Parallel(ROWS, c.head_dim_v):
        if tile.first_row + i < s.seq_q and (c.columns_v == c.head_dim_v or j < c.columns_v):
            s.given.Output[tile.batch, tile.head, tile.first_row + i, j] = s.acc_o[i, j]


@T.macro
def store_tma(tile, s, c):
    """Stores through the rows of Q_shared, which are free after that."""
    T.copy(s.acc_o, s.Q.shared[tile.wg, :, :])
    T.fence_proxy_async()
    T.sync_threads(OWN + tile.wg, WARPGROUP)
    columns = c.head_dim_v if c.columns_v < c.head_dim_v else None
    T.tma_copy(s.Q.shared[tile.wg, :, :], rows_of(s.given.Output, tile.batch, tile.head, tile.first_row, ROWS, columns))
    T.tma_store_wait(0)
    T.sync_threads(OWN + tile.wg, WARPGROUP)
    release_q(tile.wg, s)


STORES = {"direct": store_direct, "vector": store_vector, "tma": store_tma}
