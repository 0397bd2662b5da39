"""How a warpgroup of the warp-specialised kernel writes its rows of the output."""

import tilelang.language as T

from tl_attention.hardware.warpgroup import OWN, ROWS, WARP, WARPGROUP


def store_output(*, head_dim_v, dtype, seq_q, output, row_sum):
    """The macro store(first_row, head, bz, wg, Output, s): Output = acc_o / logsum for 64 rows, as `output` says."""

    @T.macro
    def store(first_row, head, bz, wg, Output, s):
        """Output = acc_o / logsum for the rows of one warpgroup."""
        if row_sum == "thread":
            T.reduce_sum(s.logsum, s.scores_scale, dim=1)
            for i in T.Parallel(ROWS):
                s.scores_scale[i] = 1.0 / s.scores_scale[i]
        else:
            for i in T.Parallel(ROWS):
                s.scores_scale[i] = 1.0 / s.logsum[i]
        for i, j in T.Parallel(ROWS, head_dim_v):
            s.acc_o[i, j] *= s.scores_scale[i]
        if output == "vector":
            T.call_extern(
                "handle",
                f"tl_attention_store<{head_dim_v}, {'true' if dtype == 'bfloat16' else 'false'}>",
                s.acc_o.data,
                T.address_of(Output[bz, head, first_row, 0]),
                seq_q - first_row,
            )
        if output == "direct":
            for i, j in T.Parallel(ROWS, head_dim_v):
                if first_row + i < seq_q:
                    Output[bz, head, first_row + i, j] = s.acc_o[i, j]
        if output == "tma":
            T.copy(s.acc_o, s.Q_shared[wg, :, :])
            T.fence_proxy_async()
            T.sync_threads(OWN + wg, WARPGROUP)
            T.tma_copy(s.Q_shared[wg, :, :], Output[bz, head, first_row : first_row + ROWS, :])
            T.tma_store_wait(0)
            T.sync_threads(OWN + wg, WARPGROUP)
            if T.shuffle_elect(WARP):
                T.mbarrier_arrive(s.Q_free[wg])

    return store
