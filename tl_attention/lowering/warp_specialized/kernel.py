"""FlashAttention forward emitted from a Program: a producer warp loads, warpgroups compute with products in flight.

Waits, acquires and releases stand where the Program has them. threadIdx.y is the warpgroup: 64 rows each, then the
producer. A block works on one row tile after another, and its rings go on from tile to tile. The last KV block comes
first: only the first ones can need a mask, so the others run without.
"""

from types import SimpleNamespace

import tilelang.language as T

from tl_attention.hardware.warpgroup import ROWS, TURN, WARP, WARPGROUP, WARPS
from tl_attention.lowering.macros import LOG2_E
from tl_attention.lowering.signature import takes
from tl_attention.lowering.warp_specialized.device_code import prelude
from tl_attention.lowering.warp_specialized.output import store_output
from tl_attention.lowering.warp_specialized.tiles import section_heads, tile_places
from tl_attention.lowering.warp_specialized.vector import per_thread_layout, vector_statements
from tl_attention.problem.variant import Sizes


def attention_kernel(
    *,
    variant,
    block_M,
    block_N,
    buffers,
    loads,
    prologue,
    steady,
    epilogue,
    least_blocks,
    chunks,
    sms,
    registers,
    tile_scheduler,
    tile_order,
    cluster,
    ping_pong,
    q_operand,
    output,
    fused_scale,
    row_max,
    row_sum,
    rescale_threshold,
    exp2_polynomial,
):
    """The prim_func of the variant, as `pipelined.attention_kernel`'s.

    `buffers` gives the depths of K_shared and V_shared, `loads` the producer's order. `prologue`, `steady`, `epilogue`
    are its Iterations; an epilogue's t counts from the number of blocks.
    `chunks` gives (first, end) columns of split statements, `sms` how many SMs there are, `registers` those of a
    consumer and of a producer thread (setmaxnreg) or None, `exp2_polynomial` (every, first, coefficients) or None; the
    rest are the schedule's options. The dynamic tile scheduler takes TileCounter.
    """
    head_dim, head_dim_v, dtype, mask = variant.head_dim, variant.head_dim_v, variant.dtype, variant.mask
    sizes = variant.sizes or Sizes(*T.dynamic(", ".join(Sizes._fields)))
    batch, heads, seq_q, seq_kv = sizes
    accum_dtype = "float32"
    warpgroups, warps, clusters = block_M // ROWS, block_M // ROWS * WARPS, sms // cluster
    depths = dict(zip(("load_k", "load_v"), buffers))
    persistent, dynamic = tile_scheduler != "one_tile", tile_scheduler == "dynamic"
    counters = ("TileCounter",) if dynamic else ()
    q_in_registers, set_registers = q_operand == "registers", registers is not None
    first_steady, steady_ops = steady
    last_steady = epilogue[0].t if epilogue else 0
    # Up to this many iterations after the last block that needs a mask, a statement still works on it.
    masked_lag = max(op.lag for op in steady_ops if op.kind == "run")
    run = vector_statements(
        block_N=block_N,
        head_dim_v=head_dim_v,
        mask=mask,
        seq_kv=seq_kv,
        chunks=chunks,
        fused_scale=fused_scale,
        row_max=row_max,
        row_sum=row_sum,
        rescale_threshold=rescale_threshold,
        exp2_polynomial=exp2_polynomial,
    )
    tile_at = tile_places(workers=clusters, order=tile_order, longest_first=mask.grows)
    store = store_output(head_dim_v=head_dim_v, dtype=dtype, seq_q=seq_q, output=output, row_sum=row_sum)

    def slot(load_name, step):
        return step % depths[load_name]

    def parity(load_name, step):
        return step // depths[load_name] % 2

    @T.macro
    def release(free, slot):
        """One arrival per warp, whose lanes have waited together, at each block that a load into the slot writes."""
        if T.shuffle_elect(WARP):
            if cluster == 1:
                T.mbarrier_arrive(free[slot])
            else:
                for rank in T.unroll(cluster):
                    T.ptx_arrive_cluster_barrier(free[slot], rank)

    @T.macro
    def emit(operations, t, base, blocks, first_row, masked, wg, s):
        """The operations of iteration t; the rings stand at step `base` when the tile begins."""
        for kind, name, lag, outstanding, registers in operations:
            if kind == "run":
                run(name, blocks - 1 - (t - lag), first_row, masked, s)
            if kind == "issue" and name == "mma0":
                T.wgmma_gemm(
                    s.Q_local if q_in_registers else s.Q_shared[wg, :, :],
                    s.ring["load_k"][slot("load_k", base + t - lag), :, :],
                    s.acc_s,
                    transpose_B=True,
                    clear_accum=True,
                    policy=T.GemmWarpPolicy.FullRow,
                )
            if kind == "issue" and name == "mma1":
                # The first one clears acc_o, which nothing else initialises.
                T.wgmma_gemm(
                    s.acc_s_cast,
                    s.ring["load_v"][slot("load_v", base + t - lag), :, :],
                    s.acc_o,
                    clear_accum=t - lag == 0,
                    policy=T.GemmWarpPolicy.FullRow,
                )
            if kind == "wait" and name in depths:
                T.mbarrier_wait_parity(s.full[name][slot(name, base + t - lag)], parity(name, base + t - lag))
            # A wait names no register: without the fence the compiler may move a use of the result before it.
            if kind == "wait" and name == "mma0":
                T.wait_wgmma(outstanding)
                T.warpgroup_fence_operand(s.acc_s, 0, block_N // 2)
            if kind == "wait" and name == "mma1":
                T.wait_wgmma(outstanding)
                T.warpgroup_fence_operand(s.acc_o, 0, head_dim_v // 2)
            if kind == "hold":
                # A call holds four in eight: all of them take two.
                for first in (registers[0], registers[0] + 4):
                    T.call_extern("handle", f"tl_attention_hold<{first}, {registers[1]}>", s.acc_s.data, s.scale)
            if kind == "hold_last":
                T.call_extern("handle", f"tl_attention_hold_last<{registers[1] - 1}>", s.acc_s.data, s.scale)
            if kind == "resume":
                T.call_extern("handle", "tl_attention_resume", s.scores_max.data, s.scale)
            if kind == "release" and name in depths:
                release(s.free[name], slot(name, base + t - lag))
            if kind == "release" and name == "load_q":
                if T.shuffle_elect(WARP):
                    T.mbarrier_arrive(s.Q_free[wg])
            if kind == "turn":
                T.sync_threads(TURN + wg, 2 * WARPGROUP)
            if kind == "pass":
                T.named_barrier_arrive(TURN + 1 - wg, 2 * WARPGROUP)

    @T.macro
    def load(name, source, step, kv, head, bz, s):
        """Acquire a buffer of the ring and fill it with KV block `kv`; a cluster's first block loads for all."""
        T.mbarrier_wait_parity(s.free[name][slot(name, step)], parity(name, step) ^ 1)
        T.tma_copy(
            source[bz, head, kv * block_N : (kv + 1) * block_N, :],
            s.ring[name][slot(name, step), :, :],
            barrier=s.full[name][slot(name, step)],
            leader_scope_threads=WARP,
            cluster_mask=2**cluster - 1 if cluster > 1 else None,
        )
        T.mbarrier_arrive(s.full[name][slot(name, step)])

    @T.macro
    def produce(turn, base, blocks, first_row, head, bz, Q, K, V, s):
        """The loads of one tile. Q comes after the first blocks: its buffer is free later than theirs."""
        for j in T.serial(blocks):
            for name in loads:
                load(name, K if name == "load_k" else V, base + j, blocks - 1 - j, head, bz, s)
            if j == 0:
                for wg in range(warpgroups):
                    T.mbarrier_wait_parity(s.Q_free[wg], turn % 2 ^ 1)
                    T.tma_copy(
                        Q[bz, head, first_row + wg * ROWS : first_row + (wg + 1) * ROWS, :],
                        s.Q_shared[wg, :, :],
                        barrier=s.Q_full[wg],
                        leader_scope_threads=WARP,
                    )
                    T.mbarrier_arrive(s.Q_full[wg])

    @T.macro
    def consume(turn, base, blocks, first_row, visible, wg, s):
        """One tile's rows of one warpgroup, up to acc_o and logsum. Blocks below `visible` need no mask."""
        T.fill(s.logsum, 0)
        T.fill(s.scores_max, -T.infinity(accum_dtype))
        T.mbarrier_wait_parity(s.Q_full[wg], turn % 2)
        if q_in_registers:
            T.copy(s.Q_shared[wg, :, :], s.Q_local)
        if q_in_registers and output != "tma":
            if T.shuffle_elect(WARP):
                T.mbarrier_arrive(s.Q_free[wg])
        for t, operations in prologue:
            emit(operations, t, base, blocks, first_row, True, wg, s)
        # Steady state: first the iterations that mask, then the rest.
        end = blocks + last_steady
        unmasked = T.max(T.min(blocks - visible + masked_lag, end), first_steady)
        # If all queries see the last key, only its block can be ragged, and a short loop padded.
        if mask.right is not None or least_blocks + masked_lag > first_steady:
            for t in T.serial(unmasked - first_steady):
                emit(steady_ops, t + first_steady, base, blocks, first_row, True, wg, s)
        for t in T.serial(end - unmasked):
            emit(steady_ops, t + unmasked, base, blocks, first_row, False, wg, s)
        for t, operations in epilogue:
            emit(operations, blocks + t, base, blocks, first_row, True, wg, s)

    @T.macro
    def work(is_producer, wg, block, Q, K, V, Output, TileCounter, s):
        """Tile after tile, by the producer warp or by one warpgroup that computes."""
        # Variables: TileLang would put the expressions into the loops.
        tile = T.alloc_var("int32")
        turn = T.alloc_var("int32")
        base = T.alloc_var("int32")
        first_row = T.alloc_var("int32")
        head = T.alloc_var("int32")
        bz = T.alloc_var("int32")
        blocks = T.alloc_var("int32")
        visible = T.alloc_var("int32")
        row_tiles = T.ceildiv(seq_q, block_M * cluster)
        tile = block // cluster
        turn = 0
        base = 0
        while tile < row_tiles * heads * batch:
            first_row = tile_at(tile, row_tiles, batch * heads, s.section)[0] * cluster
            head = tile_at(tile, row_tiles, batch * heads, s.section)[1]
            # Blocks of a cluster load together: as many KV blocks as its last row needs.
            blocks = T.ceildiv(seq_kv, block_N)
            blocks = mask.end_block(blocks, (first_row + cluster) * block_M + s.past_len, block_N, T)
            blocks = T.max(blocks, least_blocks)
            first_row = (first_row + s.rank) * block_M
            bz = head // heads
            head = head % heads
            if is_producer:
                produce(turn, base, blocks, first_row, head, bz, Q, K, V, s)
                if dynamic:
                    # After the loads: the counter takes a microsecond to answer.
                    T.mbarrier_wait_parity(s.tile_free[turn % 2], turn // 2 % 2 ^ 1)
                    if T.shuffle_elect(WARP):
                        s.next_tile[turn % 2] = T.atomic_add(TileCounter[0], 1, return_prev=True) + sms
                    T.mbarrier_arrive(s.tile_full[turn % 2])
            else:
                first_row += wg * ROWS
                visible = seq_kv // block_N
                visible = mask.end_whole(visible, first_row + s.past_len, block_N, T)
                consume(turn, base, blocks, first_row, visible, wg, s)
                store(first_row, head, bz, wg, Output, s)
            base += blocks
            if dynamic:
                T.mbarrier_wait_parity(s.tile_full[turn % 2], turn // 2 % 2)
                tile = s.next_tile[turn % 2]
                if not is_producer:
                    if T.shuffle_elect(WARP):
                        T.mbarrier_arrive(s.tile_free[turn % 2])
            elif persistent:
                tile += clusters
            else:
                tile = row_tiles * heads * batch
            turn += 1

    @T.prim_func
    @takes(variant.parameters(*counters), variant, sizes)
    def attention(Q, K, V, Output, softmax_scale, TileCounter=None):
        grid = clusters * cluster if persistent else T.ceildiv(seq_q, block_M * cluster) * cluster * heads * batch
        with T.Kernel(
            grid,
            threads=(WARPGROUP, warpgroups + 1),
            cluster_dims=cluster,
            prelude=prelude(exp2_polynomial[2] if exp2_polynomial else None),
        ) as (block,):
            Q_shared = T.alloc_shared([warpgroups, ROWS, head_dim], dtype)
            K_shared = T.alloc_shared([buffers[0], block_N, head_dim], dtype)
            V_shared = T.alloc_shared([buffers[1], block_N, head_dim_v], dtype)
            acc_s = T.alloc_fragment([ROWS, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([ROWS, block_N], dtype)
            acc_o = T.alloc_fragment([ROWS, head_dim_v], accum_dtype)
            scores_max = T.alloc_fragment([ROWS], accum_dtype)
            scores_max_prev = T.alloc_fragment([ROWS], accum_dtype)
            scores_scale = T.alloc_fragment([ROWS], accum_dtype)
            logsum = T.alloc_fragment([ROWS, 4] if row_sum == "thread" else [ROWS], accum_dtype)
            if row_sum == "thread":
                T.annotate_layout({logsum: per_thread_layout()})
            # A full barrier counts the producer warp's lanes, and bytes; a free one the warps that compute.
            Q_full = T.alloc_barrier([WARP] * warpgroups)
            Q_free = T.alloc_barrier([WARPS] * warpgroups)
            K_full = T.alloc_barrier([WARP] * buffers[0])
            V_full = T.alloc_barrier([WARP] * buffers[1])
            K_free = T.alloc_barrier([warps * cluster] * buffers[0])
            V_free = T.alloc_barrier([warps * cluster] * buffers[1])
            Q_local = T.alloc_fragment([ROWS, head_dim], dtype) if q_in_registers else None
            tile_full = T.alloc_barrier([WARP] * 2) if dynamic else None
            tile_free = T.alloc_barrier([warps] * 2) if dynamic else None
            next_tile = T.alloc_shared([2], "int32", scope="shared") if dynamic else None
            s = SimpleNamespace(
                Q_shared=Q_shared,
                Q_local=Q_local,
                ring={"load_k": K_shared, "load_v": V_shared},
                full={"load_k": K_full, "load_v": V_full},
                free={"load_k": K_free, "load_v": V_free},
                Q_full=Q_full,
                Q_free=Q_free,
                acc_s=acc_s,
                acc_s_cast=acc_s_cast,
                acc_o=acc_o,
                scores_max=scores_max,
                scores_max_prev=scores_max_prev,
                scores_scale=scores_scale,
                logsum=logsum,
                tile_full=tile_full,
                tile_free=tile_free,
                next_tile=next_tile,
                scale=softmax_scale * LOG2_E,
                past_len=seq_kv - seq_q,
                section=section_heads(batch * heads, seq_kv, head_dim + head_dim_v),
                rank=T.block_rank_in_cluster() if cluster > 1 else 0,
            )
            if cluster > 1:
                T.cluster_sync()
            ty = T.get_thread_binding(1)
            if ty == warpgroups:
                if set_registers:
                    T.set_max_nreg(registers[1], 0)
                if T.get_thread_binding(0) < WARP:
                    work(True, 0, block, Q, K, V, Output, TileCounter, s)
                    if dynamic:
                        # The last block leaves the counter as it found it.
                        if T.shuffle_elect(WARP):
                            if T.atomic_add(TileCounter[1], 1, return_prev=True) == sms - 1:
                                TileCounter[0] = 0
                                TileCounter[1] = 0
            else:
                if set_registers:
                    T.set_max_nreg(registers[0], 1)
                # Known to be the same in all lanes of a warp, and so are the products' descriptors.
                wg = T.alloc_var("int32")
                wg = T.call_extern("int32", "__shfl_sync", T.uint32(0xFFFFFFFF), ty, 0)
                if ping_pong:
                    if wg == 1:
                        T.named_barrier_arrive(TURN, 2 * WARPGROUP)
                work(False, wg, block, Q, K, V, Output, TileCounter, s)
                if ping_pong:
                    if wg == 0:
                        T.sync_threads(TURN, 2 * WARPGROUP)
            if cluster > 1:
                T.cluster_sync()

    return attention
