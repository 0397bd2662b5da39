"""FlashAttention forward emitted from a Program: a producer warp loads, warpgroups compute with products in flight.

Waits, acquires and releases stand where the Program has them. KV blocks are visited from the last: only the first ones
can need a mask, so the others run without.
"""

import tilelang.language as T

from tl_attention.kernel.macros import LOG2_E, Rescale, finite

WARP = 32
WARPGROUP = 128
# A wait names no register, so ptxas moves it up, before the exponentials that the product should overlap. A store that
# depends on an exponential, and never happens, holds it behind that one.
PRELUDE = """
__device__ __forceinline__ void tl_attention_pin(const float* exponential) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0fBF800000; @p st.shared.f32 [%1], %0;}"
               :: "f"(exponential[0]), "r"(0) : "memory");
}
"""


def attention_kernel(
    *, head_dim, dtype, causal, block_M, block_N, buffers, loads, prologue, steady, epilogue, least_blocks,
    registers=None, sizes=None
):
    """The prim_func attention(Q, K, V, Output, softmax_scale), as `pipelined.attention_kernel`'s.

    `buffers` gives the depth of K_shared and V_shared, `loads` the producer's order. `prologue`, `steady` and `epilogue`
    are iterations as (t, ((kind, statement, lag, outstanding), ...)); an epilogue's t counts from the number of blocks.
    `registers` are those of a consumer and of a producer thread (setmaxnreg), None to leave them as launched.
    """
    batch, heads, seq_q, seq_kv = sizes or T.dynamic("batch, heads, seq_q, seq_kv")
    accum_dtype = "float32"
    consumers = 2 * block_M
    warps = consumers // WARP
    first_steady, steady_ops = steady
    last_steady = epilogue[0][0] if epilogue else 0
    mask_lag = next(lag for kind, name, lag, _ in steady_ops if name == "mask")
    # The last block may be ragged; a causal tile's diagonal crosses up to this many blocks.
    boundary_blocks = 1 + (-(-block_M // block_N) if causal else 0)

    def seen(scores_max, masked):
        # Once the boundary blocks are done every row has seen a key.
        return finite(scores_max) if masked else scores_max

    @T.macro
    def run(name, step, kv, masked, state):
        """One vector statement, or the issue of one product, for loop step `step`."""
        (Q_shared, K_shared, V_shared, acc_s, acc_s_cast, acc_o, scores_max, scores_max_prev, scores_scale, scores_sum,
         logsum, scale, first_row, past_len) = state
        if name == "mma0":
            T.wgmma_gemm(
                Q_shared, K_shared[step % buffers[0], :, :], acc_s, transpose_B=True, clear_accum=True,
                policy=T.GemmWarpPolicy.FullRow,
            )
        if name == "mask" and masked:
            for i, j in T.Parallel(block_M, block_N):
                hidden = kv * block_N + j >= seq_kv
                if causal:
                    hidden = T.Or(hidden, kv * block_N + j > first_row + i + past_len)
                acc_s[i, j] = T.if_then_else(hidden, -T.infinity(accum_dtype), acc_s[i, j])
        if name == "max_prev":
            T.copy(scores_max, scores_max_prev)
        if name == "row_max":
            T.reduce_max(acc_s, scores_max, dim=1, clear=False)
        if name == "scale":
            for i in T.Parallel(block_M):
                scores_scale[i] = T.exp2(scores_max_prev[i] * scale - seen(scores_max[i], masked) * scale)
        if name == "exp":
            for i, j in T.Parallel(block_M, block_N):
                acc_s[i, j] = T.exp2(acc_s[i, j] * scale - seen(scores_max[i], masked) * scale)
        if name == "row_sum":
            T.reduce_sum(acc_s, scores_sum, dim=1)
        if name == "logsum":
            for i in T.Parallel(block_M):
                logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
        if name == "cast":
            T.copy(acc_s, acc_s_cast)
        if name == "rescale":
            Rescale(acc_o, scores_scale)
        if name == "mma1":
            T.wgmma_gemm(acc_s_cast, V_shared[step % buffers[1], :, :], acc_o, policy=T.GemmWarpPolicy.FullRow)

    @T.macro
    def emit(operations, t, blocks, masked, state, K_full, K_free, V_full, V_free):
        """The operations of iteration t."""
        for kind, name, lag, outstanding in operations:
            if kind == "run" or kind == "issue":
                run(name, t - lag, blocks - 1 - (t - lag), masked, state)
            if kind == "wait" and name == "load_k":
                T.mbarrier_wait_parity(K_full[(t - lag) % buffers[0]], (t - lag) // buffers[0] % 2)
            if kind == "wait" and name == "load_v":
                T.mbarrier_wait_parity(V_full[(t - lag) % buffers[1]], (t - lag) // buffers[1] % 2)
            if kind == "pin":
                T.call_extern("handle", "tl_attention_pin", state[3].data)
            if kind == "wait" and (name == "mma0" or name == "mma1"):
                T.wait_wgmma(outstanding)
                # The wait names no register: without this the compiler may move a use of the result before it.
                if name == "mma0":
                    T.warpgroup_fence_operand(state[3], 0, block_M * block_N // consumers)
                else:
                    T.warpgroup_fence_operand(state[5], 0, block_M * head_dim // consumers)
            # One arrival per warp: its lanes have passed the product's wait together.
            if kind == "release" and name == "load_k":
                if T.shuffle_elect(WARP):
                    T.mbarrier_arrive(K_free[(t - lag) % buffers[0]])
            if kind == "release" and name == "load_v":
                if T.shuffle_elect(WARP):
                    T.mbarrier_arrive(V_free[(t - lag) % buffers[1]])

    @T.macro
    def load(source, ring, full, free, depth, step, kv, bz, by):
        """Acquire a buffer of the ring and fill it with KV block `kv`."""
        T.mbarrier_wait_parity(free[step % depth], step // depth % 2 ^ 1)
        T.tma_copy(
            source[bz, by, kv * block_N : (kv + 1) * block_N, :], ring[step % depth, :, :],
            barrier=full[step % depth], leader_scope_threads=WARP,
        )
        T.mbarrier_arrive(full[step % depth])

    @T.prim_func
    def attention(
        Q: T.Tensor([batch, heads, seq_q, head_dim], dtype),
        K: T.Tensor([batch, heads, seq_kv, head_dim], dtype),
        V: T.Tensor([batch, heads, seq_kv, head_dim], dtype),
        Output: T.Tensor([batch, heads, seq_q, head_dim], dtype),
        softmax_scale: T.float32,
    ):
        with T.Kernel(
            T.ceildiv(seq_q, block_M), heads, batch, threads=consumers + WARPGROUP, prelude=PRELUDE
        ) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, head_dim], dtype)
            K_shared = T.alloc_shared([buffers[0], block_N, head_dim], dtype)
            V_shared = T.alloc_shared([buffers[1], block_N, head_dim], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, head_dim], accum_dtype)
            scores_max = T.alloc_fragment([block_M], accum_dtype)
            scores_max_prev = T.alloc_fragment([block_M], accum_dtype)
            scores_scale = T.alloc_fragment([block_M], accum_dtype)
            scores_sum = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)
            # A full barrier counts the producer warp's lanes and the bytes, a free one the warps that compute.
            Q_full = T.alloc_barrier(WARP)
            K_full = T.alloc_barrier([WARP] * buffers[0])
            V_full = T.alloc_barrier([WARP] * buffers[1])
            K_free = T.alloc_barrier([warps] * buffers[0])
            V_free = T.alloc_barrier([warps] * buffers[1])

            first_row = bx * block_M
            past_len = seq_kv - seq_q
            scale = softmax_scale * LOG2_E
            real_blocks = T.ceildiv(seq_kv, block_N)
            if causal:
                real_blocks = T.min(real_blocks, T.ceildiv(first_row + block_M + past_len, block_N))
            blocks = T.max(real_blocks, least_blocks)
            tx = T.get_thread_binding()

            if tx >= consumers:
                if registers:
                    T.set_max_nreg(registers[1], 0)
                if tx < consumers + WARP:
                    T.tma_copy(
                        Q[bz, by, first_row : first_row + block_M, :], Q_shared, barrier=Q_full,
                        leader_scope_threads=WARP,
                    )
                    T.mbarrier_arrive(Q_full)
                    for j in T.serial(blocks):
                        for name in loads:
                            if name == "load_k":
                                load(K, K_shared, K_full, K_free, buffers[0], j, blocks - 1 - j, bz, by)
                            else:
                                load(V, V_shared, V_full, V_free, buffers[1], j, blocks - 1 - j, bz, by)
            else:
                if registers:
                    T.set_max_nreg(registers[0], 1)
                state = (
                    Q_shared, K_shared, V_shared, acc_s, acc_s_cast, acc_o, scores_max, scores_max_prev, scores_scale,
                    scores_sum, logsum, scale, first_row, past_len,
                )
                T.fill(acc_o, 0)
                T.fill(logsum, 0)
                T.fill(scores_max, -T.infinity(accum_dtype))
                T.mbarrier_wait_parity(Q_full, 0)
                for t, operations in prologue:
                    emit(operations, t, blocks, True, state, K_full, K_free, V_full, V_free)
                # Steady state: first the iterations that mask, then the rest.
                end = blocks + last_steady
                unmasked = T.max(
                    T.min(boundary_blocks + (blocks - real_blocks) + mask_lag, end), first_steady
                )
                if causal or boundary_blocks + mask_lag > first_steady or least_blocks > 1:
                    for t in T.serial(unmasked - first_steady):
                        emit(steady_ops, t + first_steady, blocks, True, state, K_full, K_free, V_full, V_free)
                for t in T.serial(end - unmasked):
                    emit(steady_ops, t + unmasked, blocks, False, state, K_full, K_free, V_full, V_free)
                for t, operations in epilogue:
                    emit(operations, blocks + t, blocks, True, state, K_full, K_free, V_full, V_free)
                for i, j in T.Parallel(block_M, head_dim):
                    acc_o[i, j] /= logsum[i]
                T.copy(acc_o, Output[bz, by, first_row : first_row + block_M, :])

    return attention
