"""The producer warp: it loads Q, K and V by TMA, as far ahead as the rings allow."""

import tilelang.language as T

from tl_attention.hardware.warpgroup import ROWS, WARP
from tl_attention.lowering.warp_specialized.rings import slot, wait_empty


@T.macro
def produce(turn, base, first, blocks, first_row, head, bz, s, c):
    """The loads of one tile. Q comes after the first blocks: its buffer is free later than theirs."""
    for j in T.serial(blocks):
        for name in c.loop.loads:
            LOADS[name](
                base + j,
                blocks - 1 - j if c.mask.left is None else first + blocks - 1 - j,
                head if c.group == 1 else head // c.group,
                bz,
                s,
                c,
            )
        if j == 0:
            for wg in range(c.block_M // ROWS):
                load_q(turn, first_row, head, bz, wg, s, c)


@T.macro
def load_k(step, kv, head, bz, s, c):
    load(s.K, step, kv, head, bz, c)


@T.macro
def load_v(step, kv, head, bz, s, c):
    load(s.V, step, kv, head, bz, c)


LOADS = {"load_k": load_k, "load_v": load_v}


@T.macro
def load(ring, step, kv, head, bz, c):
    """Load number `step`: KV block `kv`, as soon as its slot is free."""
    wait_empty(ring, step)
    if c.narrow:
        # As many columns as the tile has: TMA fills those beyond the tensor's with 0.
        T.tma_copy(
            ring.source[bz, head, kv * c.block_N : (kv + 1) * c.block_N, 0 : ring.shared.shape[2]],
            ring.shared[slot(ring, step), :, :],
            barrier=ring.full[slot(ring, step)],
            leader_scope_threads=WARP,
            **multicast(c),
        )
    else:
        T.tma_copy(
            ring.source[bz, head, kv * c.block_N : (kv + 1) * c.block_N, :],
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
def load_q(turn, first_row, head, bz, wg, s, c):
    """A warpgroup's rows of Q."""
    T.mbarrier_wait_parity(s.Q.empty[wg], turn % 2 ^ 1)
    if c.narrow:
        T.tma_copy(
            s.Q.source[bz, head, first_row + wg * ROWS : first_row + (wg + 1) * ROWS, 0 : c.head_dim],
            s.Q.shared[wg, :, :],
            barrier=s.Q.full[wg],
            leader_scope_threads=WARP,
        )
    else:
        T.tma_copy(
            s.Q.source[bz, head, first_row + wg * ROWS : first_row + (wg + 1) * ROWS, :],
            s.Q.shared[wg, :, :],
            barrier=s.Q.full[wg],
            leader_scope_threads=WARP,
        )
    T.mbarrier_arrive(s.Q.full[wg])
