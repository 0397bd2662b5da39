"""In this FlashAttention forward a producer warp loads, and warpgroups compute with products in flight.

threadIdx.y is the warpgroup: those that compute, 64 rows each, then the producer's. KV blocks come from the last to the
first, so that those that need a mask come first. Rings of buffers go on from one row tile of a block to its next.
"""

from dataclasses import dataclass

import tilelang.language as T

from tl_attention.kernels.shared.features import factor_of, own_values
from tl_attention.kernels.shared.rows import viewed
from tl_attention.kernels.shared.signature import aligned, trace
from tl_attention.kernels.shared.softmax import LOG2_E
from tl_attention.kernels.warp_specialized.launches import MERGING, merging_blocks, merging_call
from tl_attention.kernels.warp_specialized.operations import per_thread_layout
from tl_attention.kernels.warp_specialized.packed import list_tiles, work_packed
from tl_attention.kernels.warp_specialized.tiles import reset_counter, work
from tl_attention.kernels.warp_specialized.transfers import clear_idle_rows
from tl_attention.problem.packed import TILES_TOLD, TOLD_WORDS
from tl_attention.problem.warpgroup import ALL_LANES, ROWS, TURN, WARP, WARPGROUP, WARPS


@T.macro
def launch(given, c):
    """Launches the thread blocks; in each, the last warpgroup is the producer and the others compute."""
    warpgroups = c.block_M // ROWS
    # The kernel that lists packed sequences' tiles begins when the one before has ended, and this one waits for it.
    early = c.kernel.early and not c.packed
    if c.packed:
        list_tiles(given, c)
    with T.Kernel(
        grid(given, c), threads=(WARPGROUP, warpgroups + 1), cluster_dims=c.kernel.cluster, prelude=c.prelude
    ) as (block,):
        if c.kernel.blocks_per_sm > 1:
            T.annotate_min_blocks_per_sm(c.kernel.blocks_per_sm)
        if c.parts or early:
            T.pdl_trigger()
        if c.strided:
            aligned(given, c)
        s = block_state(given, c)
        if c.traced:
            trace(given)
        if c.kernel.cluster > 1:
            T.cluster_sync()
        if early:
            # All threads wait for the end of the kernel before this one, before any reads what that one writes.
            T.pdl_sync()
        ty = T.get_thread_binding(1)
        if ty == warpgroups:
            producer(block, s, c)
        else:
            consumer(ty, block, s, c)
        if c.kernel.cluster > 1:
            T.cluster_sync()
    if c.parts:
        merge_parts(given, c)


@T.macro
def merge_parts(given, c):
    """Launches the kernel that merges the results of parts of the keys into those of all keys.

    Its thread blocks start beside those of the main kernel and wait for it to end, so that its launch takes no time.
    """
    with T.Kernel(merging_blocks(given, c.variant, c.kernel.blocks_per_sm, T), threads=MERGING) as (_,):
        T.pdl_sync()
        function, arguments = merging_call(given, c.variant, c.block_M, T)
        T.call_extern("handle", function, *arguments)


def grid(given, c):
    """Returns the number of thread blocks, one per tile if tile_scheduler is one_tile, else as many as fill the GPU."""
    if c.kernel.tile_scheduler != "one_tile":
        return given.workers * c.kernel.cluster
    batch, heads, seq_q, _ = given.Q.shape
    of_tiles = heads if c.tile_heads == 1 else c.variant.heads_of_tiles(heads)
    return T.ceildiv(seq_q, c.tile_rows * c.kernel.cluster) * c.kernel.cluster * of_tiles * batch


@T.macro
def producer(block, s, c):
    """Runs the producer's warpgroup, whose first warp loads all tiles and whose other warps are idle."""
    if c.kernel.registers is not None:
        T.set_max_nreg(c.kernel.registers[1], 0)
    if T.get_thread_binding(0) < WARP:
        if c.idle_rows:
            clear_idle_rows(s, c)
        if c.packed:
            work_packed(0, block, s, c, is_producer=True)
        else:
            work(0, block, s, c, is_producer=True)
        if c.kernel.tile_scheduler == "dynamic":
            reset_counter(s, c)


@T.macro
def consumer(ty, block, s, c):
    """Runs one warpgroup that computes its 64 rows of each tile of the block."""
    if c.kernel.registers is not None:
        T.set_max_nreg(c.kernel.registers[0], 1)
    # Broadcast, so that ptxas knows it, and the products' descriptors, to be the same in all lanes of a warp.
    wg = T.alloc_var("int32")
    wg = T.call_extern("int32", "__shfl_sync", T.uint32(ALL_LANES), ty, 0)
    if c.kernel.ping_pong:
        # Warpgroup 0 goes first: 1 gives it the turn, and it takes the last turn that is given.
        if wg == 1:
            T.named_barrier_arrive(TURN, 2 * WARPGROUP)
    if c.packed:
        work_packed(wg, block, s, c, is_producer=False)
    else:
        work(wg, block, s, c, is_producer=False)
    if c.kernel.ping_pong:
        if wg == 0:
            T.sync_threads(TURN, 2 * WARPGROUP)


@dataclass(frozen=True)
class Ring:
    """A Ring is `depth` buffers for a tensor's tiles in shared memory, each with a full and an empty mbarrier.

    Q has one buffer for each warpgroup's rows.
    """

    source: object
    shared: object
    full: object
    empty: object
    depth: object = None


@dataclass(frozen=True)
class TileScheduler:
    """A TileScheduler holds the counter of tiles, and the mbarriers and shared memory that hand tiles to all warps."""

    counter: object
    full: object
    empty: object
    next: object


@dataclass(frozen=True)
class State:
    """State holds what a block's macros share under the name `s`, its tensors, rings, fragments and sizes.

    What a schedule does not use is None.
    """

    Q: object
    K: object
    V: object
    given: object
    own: object  # what features read of a head
    acc_s: object
    acc_s_cast: object
    acc_o: object
    scores_max: object
    scores_max_prev: object
    scores_scale: object
    denominator: object
    Q_local: object
    P_shared: object
    tiles: object
    batch: object
    heads: object
    seq_q: object
    seq_kv: object
    scale: object  # scores times this are exponents of 2
    rank: object  # the thread block's among those of its cluster


@T.macro
def block_state(given, c):
    """Allocates a block's shared buffers, mbarriers and fragments, and returns them with the tensors as a State."""
    warpgroups = c.block_M // ROWS
    Q_shared = T.alloc_shared([warpgroups, ROWS, c.head_dim], c.dtype)
    K_shared = T.alloc_shared([c.kernel.k_stages, c.block_N, c.head_dim], c.dtype)
    V_shared = T.alloc_shared([c.kernel.v_stages, c.block_N, c.head_dim_v], c.dtype)
    P_shared = T.alloc_shared([warpgroups, ROWS, c.block_N], c.dtype) if c.kernel.p_operand == "shared" else None
    fragments = warpgroup_state(c)
    Q_local = T.alloc_fragment([ROWS, c.head_dim], c.dtype) if c.kernel.q_operand == "registers" else None
    own = own_values(c) if c.features.at("first", "last") else None
    # Full barriers count the producer warp's lanes, and bytes; empty ones the warps that compute.
    readers = warpgroups * WARPS * c.kernel.cluster
    Q_full = T.alloc_barrier([WARP] * warpgroups)
    Q_empty = T.alloc_barrier([WARPS] * warpgroups)
    K_full = T.alloc_barrier([WARP] * c.kernel.k_stages)
    V_full = T.alloc_barrier([WARP] * c.kernel.v_stages)
    K_empty = T.alloc_barrier([readers] * c.kernel.k_stages)
    V_empty = T.alloc_barrier([readers] * c.kernel.v_stages)
    return State(
        Q=Ring(viewed(given.Q, c), Q_shared, Q_full, Q_empty),
        K=Ring(viewed(given.K, c), K_shared, K_full, K_empty, c.kernel.k_stages),
        V=Ring(viewed(given.V, c), V_shared, V_full, V_empty, c.kernel.v_stages),
        given=given,
        own=own,
        **fragments,
        Q_local=Q_local,
        P_shared=P_shared,
        tiles=tile_scheduler(given.TileCounter, c) if c.packed or c.kernel.tile_scheduler == "dynamic" else None,
        batch=None if c.packed else (given.Output if c.parts else given.Q).shape[0],
        heads=given.Q.shape[1] if c.tile_heads == 1 else c.variant.heads_of_tiles(given.Q.shape[1]),
        seq_q=given.Q.shape[0 if c.packed else 2],
        seq_kv=given.K.shape[0 if c.packed else 2],
        scale=(factor_of(given, own, c) if c.features.at("factor") else given.softmax_scale) * LOG2_E,
        rank=T.block_rank_in_cluster() if c.kernel.cluster > 1 else 0,
    )


@T.macro
def warpgroup_state(c):
    """Allocates the fragments for 64 rows of scores, output and online softmax, and returns them by name."""
    acc_s = T.alloc_fragment([ROWS, c.block_N], "float32")
    acc_s_cast = T.alloc_fragment([ROWS, c.block_N], c.dtype) if c.kernel.p_operand == "registers" else None
    acc_o = T.alloc_fragment([ROWS, c.head_dim_v], "float32")
    scores_max = T.alloc_fragment([ROWS], "float32")
    scores_max_prev = T.alloc_fragment([ROWS], "float32")
    scores_scale = T.alloc_fragment([ROWS], "float32")
    denominator = T.alloc_fragment([ROWS, 4] if c.softmax.row_sum == "thread" else [ROWS], "float32")
    if c.softmax.row_sum == "thread":
        T.annotate_layout({denominator: per_thread_layout()})
    return {
        "acc_s": acc_s,
        "acc_s_cast": acc_s_cast,
        "acc_o": acc_o,
        "scores_max": scores_max,
        "scores_max_prev": scores_max_prev,
        "scores_scale": scores_scale,
        "denominator": denominator,
    }


@T.macro
def tile_scheduler(TileCounter, c):
    """Allocates the shared memory and mbarriers that hand over the next tiles, and returns them as a TileScheduler.

    The producer warp takes the numbers from the counter.
    """
    told = TILES_TOLD if c.packed else 2
    tile_full = T.alloc_barrier([WARP] * told)
    tile_empty = T.alloc_barrier([c.block_M // ROWS * WARPS] * told)
    next_tile = T.alloc_shared([told, TOLD_WORDS] if c.packed else [told], "int32", scope="shared")
    return TileScheduler(TileCounter, tile_full, tile_empty, next_tile)
