"""The producer warp: it loads Q, K and V by TMA, as far ahead as the rings allow."""

import tilelang.language as T

from tl_attention.hardware.warpgroup import ROWS, WARP
from tl_attention.lowering.rows import rows_of
from tl_attention.lowering.warp_specialized.rings import slot, wait_empty


@T.macro
def produce(tile, s, c):
    """The loads of one tile. Q comes after the first blocks: its buffer is free later than theirs."""
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
    """The KV block that comes j-th."""
    return tile.blocks - 1 - j if c.mask.left is None else tile.first + tile.blocks - 1 - j


@T.macro
def load(ring, step, kv, tile, c):
    """Load number `step`: KV block `kv`, as soon as its slot is free."""
    wait_empty(ring, step)
    # As many columns as the tile has, where the tensor has fewer.
    columns = ring.shared.shape[2] if c.narrow else None
    head = tile.head if c.group == 1 else tile.head // c.group
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
    """A warpgroup's rows of Q."""
    T.mbarrier_wait_parity(s.Q.empty[wg], tile.turn % 2 ^ 1)
    columns = c.head_dim if c.narrow else None
    T.tma_copy(
        rows_of(s.Q.source, tile.batch, tile.head, tile.first_row + wg * ROWS, ROWS, columns),
        s.Q.shared[wg, :, :],
        barrier=s.Q.full[wg],
        leader_scope_threads=WARP,
    )
    T.mbarrier_arrive(s.Q.full[wg])
