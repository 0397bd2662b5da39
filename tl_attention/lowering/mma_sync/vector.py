"""The vector statements, on what a thread has: a macro each, and each an operation of an iteration.

Of each 16 rows a thread has two, eight apart, and of these a pair of each eight columns (PTX ISA, mma.m16n8k16): element
4 j + 2 h + e of its products' i-th 16 rows is row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e.
"""

import tilelang.language as T

from tl_attention.lowering.mma_sync.copies import block
from tl_attention.lowering.softmax import exponent, seen


def chunk_of(columns, width):
    """(first, end) of a statement's columns, which are all unless it is split."""
    return (0, width) if columns is None else columns


def score_at(i, j, e, c):
    """Where a thread has element e of eight columns of its i-th 16 rows."""
    return i * (c.block_N // 2) + j * 4 + e


def is_hidden(i, j, e, t, tile, s, c):
    """Whether the key of a score is hidden from its query."""
    row = i * c.rows + s.thread // 32 * 16 + s.thread % 32 // 4 + e // 2 * 8
    key = j * 8 + s.thread % 4 * 2 + e % 2
    return c.mask.hidden(key, tile.first_row + row + s.past_len, s.seq_kv, T, block(t, tile) * c.block_N)


@T.macro
def mask(t, tile, s, c):
    """acc_s = -inf where a key is hidden."""
    for i in T.unroll(c.block_M // c.rows):
        for j in T.unroll(c.block_N // 8):
            for e in T.unroll(4):
                s.acc_s[score_at(i, j, e, c)] = T.if_then_else(
                    is_hidden(i, j, e, t, tile, s, c), -T.infinity("float32"), s.acc_s[score_at(i, j, e, c)]
                )


@T.macro
def max_prev(t, tile, s, c):
    """scores_max_prev = scores_max."""
    for r in T.unroll(2 * (c.block_M // c.rows)):
        s.scores_max_prev[r] = s.scores_max[r]


@T.macro
def row_max(t, tile, s, c):
    """scores_max = max(scores_max, max_j acc_s): of each thread's columns, then of the four threads of a row."""
    for r in T.unroll(2 * (c.block_M // c.rows)):
        for j in T.unroll(c.block_N // 8):
            for e in T.unroll(2):
                s.scores_max[r] = T.max(s.scores_max[r], s.acc_s[score_at(r // 2, j, r % 2 * 2 + e, c)])
    for r in T.unroll(2 * (c.block_M // c.rows)):
        s.scores_max[r] = T.max(s.scores_max[r], T.shfl_xor(s.scores_max[r], 1))
        s.scores_max[r] = T.max(s.scores_max[r], T.shfl_xor(s.scores_max[r], 2))


@T.macro
def row_max_beyond_threshold(t, tile, s, c):
    """scores_max = max_j acc_s where that is larger by more than the threshold: else every exponential stays small."""
    row_max(t, tile, s, c)
    for r in T.unroll(2 * (c.block_M // c.rows)):
        grows = (s.scores_max[r] - s.scores_max_prev[r]) * s.scale > T.float32(c.softmax.rescale_threshold)
        s.scores_max[r] = T.if_then_else(grows, s.scores_max[r], s.scores_max_prev[r])


@T.macro
def scale(t, tile, s, c, masked):
    """scores_scale = exp2(scale (scores_max_prev - scores_max))."""
    for r in T.unroll(2 * (c.block_M // c.rows)):
        s.scores_scale[r] = T.exp2(exponent(s.scores_max_prev[r], seen(s.scores_max[r], masked), s, c))


@T.macro
def exp(t, tile, s, c, masked, columns=None):
    """acc_s = exp2(scale (acc_s - scores_max))."""
    first, end = chunk_of(columns, c.block_N)
    for i in T.unroll(c.block_M // c.rows):
        for j in T.unroll((end - first) // 8):
            for e in T.unroll(4):
                at = score_at(i, first // 8 + j, e, c)
                s.acc_s[at] = T.exp2(exponent(s.acc_s[at], seen(s.scores_max[i * 2 + e // 2], masked), s, c))


@T.macro
def row_sum(t, tile, s, c, columns=None):
    """denominator = denominator scores_scale + sum_j acc_s, of each thread's columns."""
    first, end = chunk_of(columns, c.block_N)
    if first == 0:
        for r in T.unroll(2 * (c.block_M // c.rows)):
            s.denominator[r] *= s.scores_scale[r]
    for r in T.unroll(2 * (c.block_M // c.rows)):
        for j in T.unroll((end - first) // 8):
            for e in T.unroll(2):
                s.denominator[r] += s.acc_s[score_at(r // 2, first // 8 + j, r % 2 * 2 + e, c)]


@T.macro
def cast(t, tile, s, c, columns=None):
    """acc_s_cast = acc_s, in the precision of V."""
    first, end = chunk_of(columns, c.block_N)
    for i in T.unroll(c.block_M // c.rows):
        for n in T.unroll((end - first) // 4):
            for e in T.vectorized(2):
                at = score_at(i, first // 8, n * 2, c) + e
                s.acc_s_cast[at] = s.acc_s[at]


@T.macro
def rescale(t, tile, s, c, columns=None):
    """acc_o *= scores_scale."""
    rescale_columns(chunk_of(columns, c.head_dim_v), s, c)


@T.macro
def rescale_columns(columns, s, c):
    """acc_o *= scores_scale in columns (first, end)."""
    first, end = columns
    for i in T.unroll(c.block_M // c.rows):
        for j in T.unroll((end - first) // 8):
            for e in T.unroll(4):
                s.acc_o[i * (c.head_dim_v // 2) + first // 2 + j * 4 + e] *= s.scores_scale[i * 2 + e // 2]


@T.macro
def rescale_where_max_grew(t, tile, s, c, columns=None):
    """acc_o *= scores_scale, unless that is 1 in all rows of the warp."""
    if T.call_extern("bool", f"tl_attention_grew<{2 * (c.block_M // c.rows)}>", s.scores_scale.data):
        rescale_columns(chunk_of(columns, c.head_dim_v), s, c)


def vector_statement(statement, c):
    """The macro of a vector statement."""
    keeps = c.softmax.rescale_threshold > 0
    return {
        "mask": mask,
        "max_prev": max_prev,
        "row_max": row_max_beyond_threshold if keeps else row_max,
        "scale": scale,
        "exp": exp,
        "row_sum": row_sum,
        "cast": cast,
        "rescale": rescale_where_max_grew if keeps else rescale,
    }[statement]
