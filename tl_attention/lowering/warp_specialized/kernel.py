"""FlashAttention forward: a producer warp loads, warpgroups compute with products in flight.

threadIdx.y is the warpgroup: those that compute, 64 rows each, then the producer's. KV blocks come from the last to the
first, so that those that need a mask come first. Rings of buffers go on from one row tile of a block to its next.
"""

import tilelang.language as T

from tl_attention.hardware.warpgroup import ALL_LANES, ROWS, TURN, WARP, WARPGROUP
from tl_attention.loop.exp2 import COEFFICIENTS
from tl_attention.lowering.device_code import device_code
from tl_attention.lowering.signature import aligned
from tl_attention.lowering.warp_specialized.device_code import (
    PRELUDE,
    STORE_COLUMNS,
    STORE_P,
    STRIDED_PRELUDE,
    STRIDED_STORE_COLUMNS,
    exp2_polynomial,
)
from tl_attention.lowering.warp_specialized.state import block_state
from tl_attention.lowering.warp_specialized.tiles import workers
from tl_attention.lowering.warp_specialized.work import reset_counter, work


@T.macro
def launch(given, c):
    """The thread blocks, and their roles."""
    warpgroups = c.block_M // ROWS
    with T.Kernel(
        grid(given, c), threads=(WARPGROUP, warpgroups + 1), cluster_dims=c.kernel.cluster, prelude=prelude(c)
    ) as (block,):
        if c.kernel.blocks_per_sm > 1:
            T.annotate_min_blocks_per_sm(c.kernel.blocks_per_sm)
        if c.strided:
            aligned(given)
        s = block_state(given, c)
        if c.kernel.cluster > 1:
            T.cluster_sync()
        ty = T.get_thread_binding(1)
        if ty == warpgroups:
            producer(block, s, c)
        else:
            consumer(ty, block, s, c)
        if c.kernel.cluster > 1:
            T.cluster_sync()


def prelude(c):
    """The CUDA device functions that the kernel calls."""
    text = STRIDED_PRELUDE if c.strided else PRELUDE
    if c.columns_v < c.head_dim_v:
        text += STRIDED_STORE_COLUMNS if c.strided else STORE_COLUMNS
    if c.softmax.exp2_polynomial is not None:
        text += exp2_polynomial(COEFFICIENTS[c.softmax.exp2_polynomial.degree])
    if c.kernel.p_operand == "shared":
        text += STORE_P
    if c.features.at_any:
        text += device_code(c.features.all)
    return text


def grid(given, c):
    """How many thread blocks there are."""
    if c.kernel.tile_scheduler != "one_tile":
        return workers(c) * c.kernel.cluster
    batch, heads, seq_q, _ = given.Q.shape
    return T.ceildiv(seq_q, c.block_M * c.kernel.cluster) * c.kernel.cluster * heads * batch


@T.macro
def producer(block, s, c):
    """A warpgroup of which one warp works."""
    if c.kernel.registers is not None:
        T.set_max_nreg(c.kernel.registers[1], 0)
    if T.get_thread_binding(0) < WARP:
        work(0, block, s, c, is_producer=True)
        if c.kernel.tile_scheduler == "dynamic":
            reset_counter(s, c)


@T.macro
def consumer(ty, block, s, c):
    """A warpgroup that computes."""
    if c.kernel.registers is not None:
        T.set_max_nreg(c.kernel.registers[0], 1)
    # Broadcast, so that ptxas knows it, and the products' descriptors, to be the same in all lanes of a warp.
    wg = T.alloc_var("int32")
    wg = T.call_extern("int32", "__shfl_sync", T.uint32(ALL_LANES), ty, 0)
    if c.kernel.ping_pong:
        # Warpgroup 0 goes first: 1 gives it the turn, and it takes the last turn that is given.
        if wg == 1:
            T.named_barrier_arrive(TURN, 2 * WARPGROUP)
    work(wg, block, s, c, is_producer=False)
    if c.kernel.ping_pong:
        if wg == 0:
            T.sync_threads(TURN, 2 * WARPGROUP)
