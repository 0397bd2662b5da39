"""The vector statements of the warp-specialised kernel, on the 64 rows of one warpgroup."""

import tilelang.language as T

from tl_attention.hardware.warpgroup import ROWS
from tl_attention.lowering.macros import finite


def per_thread_layout():
    """Layout of a (64, 4) fragment: what each of the four lanes that share a row of an accumulator has of it."""
    return T.Fragment([ROWS, 4], forward_fn=lambda i, lane: (i // 16 * 32 + i % 8 * 4 + lane, i // 8 % 2))


def lane_of(column):
    """Which of the four lanes that share a row has this column of an accumulator: `device_code.py` has the layout."""
    return column // 2 % 4


def vector_statements(
    *, block_N, head_dim_v, mask, seq_kv, chunks, fused_scale, row_max, row_sum, rescale_threshold, exp2_polynomial
):
    """The macro run(statement, kv, first_row, masked, s): one statement for KV block `kv`, rows from `first_row`.

    `s` holds acc_s, acc_s_cast, acc_o, scores_max, scores_max_prev, scores_scale, logsum, scale (of base-2
    exponents) and past_len, the keys before query 0. `masked` blocks may have hidden keys, and rows that have seen
    none. `chunks` gives (first, end) columns of split statements.
    """
    minus_inf = -T.infinity("float32")
    per_thread = row_sum == "thread"
    # Without a threshold row_max overwrites scores_max, and every block rescales.
    in_place = rescale_threshold == 0

    def seen(scores_max, masked):
        # Once the boundary blocks are done every row has seen a key.
        return finite(scores_max) if masked else scores_max

    def exponent(score, scores_max, scale):
        return score * scale - scores_max * scale if fused_scale else (score - scores_max) * scale

    def exp2(exponent, i, j):
        if not exp2_polynomial:
            return T.exp2(exponent)
        every, first, _ = exp2_polynomial
        register = j // 8 * 4 + i // 8 % 2 * 2 + j % 2
        chosen = T.And(register >= first, (register - first) % every == 0)
        return T.if_then_else(chosen, T.call_extern("float32", "tl_attention_exp2", exponent), T.exp2(exponent))

    def inside(name, column):
        return T.And(column >= chunks[name][0], column < chunks[name][1])

    @T.macro
    def rescale(name, s):
        for i, j in T.Parallel(ROWS, head_dim_v):
            if name == "rescale" or inside(name, j):
                s.acc_o[i, j] *= s.scores_scale[i]

    @T.macro
    def maximum(row_maximum, s):
        """row_maximum = that of acc_s, or of acc_s and scores_max: the caller takes the larger of both anyway."""
        if row_max == "thread":
            of_thread = T.alloc_fragment([ROWS, 4], "float32")
            T.annotate_layout({of_thread: per_thread_layout()})
            for i, lane in T.Parallel(ROWS, 4):
                of_thread[i, lane] = s.scores_max[i]
            for i, j in T.Parallel(ROWS, block_N):
                of_thread[i, lane_of(j)] = T.max(of_thread[i, lane_of(j)], s.acc_s[i, j])
            T.reduce_max(of_thread, row_maximum, dim=1)
        else:
            T.reduce_max(s.acc_s, row_maximum, dim=1, clear=not in_place)

    @T.macro
    def run(name, kv, first_row, masked, s):
        statement = name.partition(".")[0]
        if statement == "mask" and masked:
            for i, j in T.Parallel(ROWS, block_N):
                hidden = mask.hidden(j, first_row + i + s.past_len, seq_kv, T, kv * block_N)
                s.acc_s[i, j] = T.if_then_else(hidden, minus_inf, s.acc_s[i, j])
        if statement == "max_prev":
            T.copy(s.scores_max, s.scores_max_prev)
        if statement == "row_max" and in_place:
            maximum(s.scores_max, s)
        if statement == "row_max" and not in_place:
            block_max = T.alloc_fragment([ROWS], "float32")
            maximum(block_max, s)
            for i in T.Parallel(ROWS):
                grows = (block_max[i] - s.scores_max[i]) * s.scale > T.float32(rescale_threshold)
                s.scores_max[i] = T.if_then_else(grows, block_max[i], s.scores_max[i])
        if statement == "scale":
            for i in T.Parallel(ROWS):
                s.scores_scale[i] = T.exp2(exponent(s.scores_max_prev[i], seen(s.scores_max[i], masked), s.scale))
        if statement == "exp":
            for i, j in T.Parallel(ROWS, block_N):
                if name == statement or inside(name, j):
                    s.acc_s[i, j] = exp2(exponent(s.acc_s[i, j], seen(s.scores_max[i], masked), s.scale), i, j)
        if statement == "row_sum" and per_thread:
            if name == statement or chunks[name][0] == 0:
                for i, lane in T.Parallel(ROWS, 4):
                    s.logsum[i, lane] *= s.scores_scale[i]
            for i, j in T.Parallel(ROWS, block_N):
                if name == statement or inside(name, j):
                    s.logsum[i, lane_of(j)] += s.acc_s[i, j]
        if statement == "row_sum" and not per_thread:
            row_total = T.alloc_fragment([ROWS], "float32")
            T.reduce_sum(s.acc_s, row_total, dim=1)
            for i in T.Parallel(ROWS):
                s.logsum[i] = s.logsum[i] * s.scores_scale[i] + row_total[i]
        if statement == "cast" and name == statement:
            T.copy(s.acc_s, s.acc_s_cast)
        if statement == "cast" and name != statement:
            for i, j in T.Parallel(ROWS, block_N):
                if inside(name, j):
                    s.acc_s_cast[i, j] = s.acc_s[i, j]
        if statement == "rescale" and in_place:
            rescale(name, s)
        if statement == "rescale" and not in_place:
            if T.call_extern("bool", "tl_attention_grew", s.scores_scale.data):
                rescale(name, s)

    return run
