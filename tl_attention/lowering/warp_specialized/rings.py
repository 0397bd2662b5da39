"""Rings of buffers in shared memory: load number `step` of a ring is in slot step % depth.

The phase of a full barrier ends when a load has arrived, that of an empty one when all have read it.
"""

import tilelang.language as T

from tl_attention.hardware.warpgroup import WARP


def slot(ring, step):
    """The slot of load number `step`."""
    return step % ring.depth


def parity(ring, step):
    """The parity of the phase that load number `step` is in: even or odd laps of the ring."""
    return step // ring.depth % 2


def wait_full(ring, step):
    """Waits until load number `step` has arrived."""
    return T.mbarrier_wait_parity(ring.full[slot(ring, step)], parity(ring, step))


def wait_empty(ring, step):
    """Waits until the slot of load number `step` is empty; at first it is."""
    return T.mbarrier_wait_parity(ring.empty[slot(ring, step)], parity(ring, step) ^ 1)


@T.macro
def release(ring, at, c):
    """One arrival per warp, whose lanes have waited together, at each block that a load into the slot writes."""
    if T.shuffle_elect(WARP):
        if c.kernel.cluster == 1:
            T.mbarrier_arrive(ring.empty[at])
        else:
            for rank in T.unroll(c.kernel.cluster):
                T.ptx_arrive_cluster_barrier(ring.empty[at], rank)


@T.macro
def release_q(wg, s):
    """One arrival per warp: its warpgroup's rows of Q_shared are free."""
    if T.shuffle_elect(WARP):
        T.mbarrier_arrive(s.Q.empty[wg])
