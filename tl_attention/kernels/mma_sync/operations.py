"""Each operation of an iteration is emitted by a macro, or by a function that gives an expression.

Each is called with `(t, tile, s, c)`, and what it needs besides by name. `t` is a KV block of the tile, counted from
the first one to be worked on; `s` is the memory of the thread block, `c` the constants.
"""

import tilelang.language as T

from tl_attention.kernels.mma_sync.transfers import element, load_k, load_v
from tl_attention.kernels.shared.softmax import exponent, finite_max
from tl_attention.schedule.loop.table import whole


@T.macro
def frag_q(t, tile, s, c, first=0, steps=None, q=0):
    """Loads `steps` steps of 16 columns of Q (None for all), from step `first` on, into Q_local at step `q`.

    Of each 16 rows and 16 columns the upper and lower 8 rows, left 8 columns first.
    """
    fragments_of_q(first, steps, q, s, c)


@T.macro
def keep_q(t, tile, s, c):
    """Loads all columns of the tile's rows of Q into Q_local, where they stay for all KV blocks."""
    fragments_of_q(0, None, 0, s, c)


@T.macro
def fragments_of_q(first, steps, place, s, c):
    """Loads `steps` steps of 16 columns of Q (None for all), from step `first` on, into Q_local at step `place`."""
    products = c.block_M // c.rows
    for step in T.unroll(c.head_dim // 16 if steps is None else steps):
        for i in T.unroll(products):
            row = i * c.rows + s.thread // 32 * 16 + s.thread % 16
            at = element(row, (first + step) * 2 + s.thread % 32 // 16, c.block_M, c.head_dim, c)
            ldmatrix(4, False, s.Q_shared, at, s.Q_local, ((place + step) * products + i) * 8)


def ldmatrix(matrices, transposed, shared, at, registers, place):
    """Returns an ldmatrix, which loads `matrices` 8 x 8 matrices from shared memory into registers.

    A lane says where one row of 8 stands, and gets two elements of each matrix.
    """
    return T.ptx_ldmatrix(
        T.bool(transposed),
        matrices,
        T.access_ptr(shared[at], "r", extent=8),
        T.access_ptr(registers[place], "w", extent=2 * matrices),
    )


@T.macro
def frag_k(t, tile, s, c, first=0, steps=None, k=0):
    """Loads `steps` steps of 16 columns of a block's K (None for all), from step `first` on, into K_local at `k`.

    Of each 8 keys and 16 columns, the first 8 and the last 8.
    """
    slot = t % c.kernel.k_stages * (c.block_N * c.head_dim)
    for step in T.unroll(steps_of(steps, c.head_dim)):
        if c.kernel.ldmatrix == "x4":
            for j in T.unroll(c.block_N // 16):
                key = j * 16 + s.thread % 8 + s.thread % 32 // 16 * 8
                at = slot + element(key, (first + step) * 2 + s.thread % 16 // 8, c.block_N, c.head_dim, c)
                ldmatrix(4, False, s.K_shared, at, s.K_local, (k + step) * (c.block_N // 2) + j * 8)
        else:
            for j in T.unroll(c.block_N // 8):
                key = j * 8 + s.thread % 8
                at = slot + element(key, (first + step) * 2 + s.thread % 16 // 8, c.block_N, c.head_dim, c)
                ldmatrix(2, False, s.K_shared, at, s.K_local, (k + step) * (c.block_N // 2) + j * 4)


@T.macro
def frag_v(t, tile, s, c, first=0, steps=None, v=0):
    """Loads `steps` steps of 16 rows of a block's V (None for all), transposed, from `first` on, into V_local at `v`.

    Of each 8 columns and 16 keys, the first 8 and the last 8.
    """
    slot = t % c.kernel.v_stages * (c.block_N * c.head_dim_v)
    for step in T.unroll(steps_of(steps, c.block_N)):
        key = (first + step) * 16 + s.thread % 16
        if c.kernel.ldmatrix == "x4":
            for j in T.unroll(c.head_dim_v // 16):
                at = slot + element(key, j * 2 + s.thread % 32 // 16, c.block_N, c.head_dim_v, c)
                ldmatrix(4, True, s.V_shared, at, s.V_local, (v + step) * (c.head_dim_v // 2) + j * 8)
        else:
            for j in T.unroll(c.head_dim_v // 8):
                at = slot + element(key, j, c.block_N, c.head_dim_v, c)
                ldmatrix(2, True, s.V_shared, at, s.V_local, (v + step) * (c.head_dim_v // 2) + j * 4)


@T.macro
def mma0(t, tile, s, c, first=0, steps=None, q=0, k=0):
    """Adds Q_local K_local^T over a chunk's columns to acc_s, which the chunk with `first` 0 clears before."""
    products = c.block_M // c.rows
    if first == 0:
        for i in T.unroll(products * c.block_N // 2):
            s.acc_s[i] = 0
    for step in T.unroll(steps_of(steps, c.head_dim)):
        for j in T.unroll(c.block_N // 8):
            for i in T.unroll(products):
                multiply(
                    s.Q_local,
                    ((q + step) * products + i) * 8,
                    s.K_local,
                    (k + step) * (c.block_N // 2) + j * 4,
                    s.acc_s,
                    i * (c.block_N // 2) + j * 4,
                    c,
                )


@T.macro
def mma1(t, tile, s, c, first=0, steps=None, v=0):
    """Adds acc_s_cast V_local over a chunk's keys to acc_o."""
    products = c.block_M // c.rows
    for step in T.unroll(steps_of(steps, c.block_N)):
        for j in T.unroll(c.head_dim_v // 8):
            for i in T.unroll(products):
                multiply(
                    s.acc_s_cast,
                    i * (c.block_N // 2) + (first + step) * 8,
                    s.V_local,
                    (v + step) * (c.head_dim_v // 2) + j * 4,
                    s.acc_o,
                    i * (c.head_dim_v // 2) + j * 4,
                    c,
                )


def multiply(A, a, B, b, C, at, c):
    """Returns an mma.sync, C += A B of 16 rows, 8 columns and depth 16, on registers from A[a], B[b] and C[at] on."""
    dtype = "bf16" if c.dtype == "bfloat16" else "fp16"
    return T.ptx_mma(
        "float32", "m16n8k16", "row", "col", dtype, dtype, "fp32", A.data, a, B.data, b, C.data, at, T.bool(False)
    )


def steps_of(steps, columns):
    """Returns a statement's number of steps of 16 columns or keys, which is `steps`, or columns // 16 if None."""
    return columns // 16 if steps is None else steps


def chunk_of(columns, width):
    """Returns (first, end) of a statement's columns, which is `columns`, or (0, width) if that is None."""
    return (0, width) if columns is None else columns


def score_at(i, j, e, c):
    """Returns the index in acc_s of element e of a thread's j-th eight columns in its i-th 16 rows."""
    return i * (c.block_N // 2) + j * 4 + e


def is_hidden(i, j, e, t, tile, s, c):
    """Returns the condition that the mask hides the key of a thread's score (i, j, e) from its query."""
    row = i * c.rows + s.thread // 32 * 16 + s.thread % 32 // 4 + e // 2 * 8
    key = j * 8 + s.thread % 4 * 2 + e % 2
    return c.mask.hidden(key, tile.first_row + row + s.past_len, s.seq_kv, T, tile.kv_block(t) * c.block_N)


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
    """scores_max = max(scores_max, max_j acc_s), of each thread's columns first, then of the four threads of a row."""
    for r in T.unroll(2 * (c.block_M // c.rows)):
        for j in T.unroll(c.block_N // 8):
            for e in T.unroll(2):
                s.scores_max[r] = T.max(s.scores_max[r], s.acc_s[score_at(r // 2, j, r % 2 * 2 + e, c)])
    for r in T.unroll(2 * (c.block_M // c.rows)):
        s.scores_max[r] = T.max(s.scores_max[r], T.shfl_xor(s.scores_max[r], 1))
        s.scores_max[r] = T.max(s.scores_max[r], T.shfl_xor(s.scores_max[r], 2))


@T.macro
def row_max_beyond_threshold(t, tile, s, c):
    """scores_max = max_j acc_s where that is larger by more than the rescale threshold; elsewhere it stays.

    So every exponential stays small.
    """
    row_max(t, tile, s, c)
    for r in T.unroll(2 * (c.block_M // c.rows)):
        grows = (s.scores_max[r] - s.scores_max_prev[r]) * s.scale > T.float32(c.softmax.rescale_threshold)
        s.scores_max[r] = T.if_then_else(grows, s.scores_max[r], s.scores_max_prev[r])


@T.macro
def scale(t, tile, s, c, masked):
    """scores_scale = exp2(scale (scores_max_prev - scores_max))."""
    for r in T.unroll(2 * (c.block_M // c.rows)):
        s.scores_scale[r] = T.exp2(exponent(s.scores_max_prev[r], finite_max(s.scores_max[r], masked), s, c))


@T.macro
def exp(t, tile, s, c, masked, columns=None):
    """acc_s = exp2(scale (acc_s - scores_max)), in `columns` (first, end) or in all if None."""
    first, end = chunk_of(columns, c.block_N)
    for i in T.unroll(c.block_M // c.rows):
        for j in T.unroll((end - first) // 8):
            for e in T.unroll(4):
                at = score_at(i, first // 8 + j, e, c)
                s.acc_s[at] = T.exp2(exponent(s.acc_s[at], finite_max(s.scores_max[i * 2 + e // 2], masked), s, c))


@T.macro
def row_sum(t, tile, s, c, columns=None):
    """Adds a thread's acc_s in `columns`, or all, to denominator, which the first chunk scales by scores_scale.

    The scaling is one FMA with the row's first score, whatever the compiler would fuse.
    """
    first, end = chunk_of(columns, c.block_N)
    if first == 0:
        for r in T.unroll(2 * (c.block_M // c.rows)):
            first_score = s.acc_s[score_at(r // 2, 0, r % 2 * 2, c)]
            s.denominator[r] = T.fma(s.denominator[r], s.scores_scale[r], first_score)
    for r in T.unroll(2 * (c.block_M // c.rows)):
        for j in T.unroll((end - first) // 8):
            for e in T.unroll(2):
                if first + j + e > 0:
                    s.denominator[r] += s.acc_s[score_at(r // 2, first // 8 + j, r % 2 * 2 + e, c)]


@T.macro
def cast(t, tile, s, c, columns=None):
    """acc_s_cast = acc_s in the precision of V, in `columns` (first, end) or in all if None."""
    first, end = chunk_of(columns, c.block_N)
    for i in T.unroll(c.block_M // c.rows):
        for n in T.unroll((end - first) // 4):
            for e in T.vectorized(2):
                at = score_at(i, first // 8, n * 2, c) + e
                s.acc_s_cast[at] = s.acc_s[at]


@T.macro
def rescale(t, tile, s, c, columns=None):
    """acc_o *= scores_scale, in `columns` (first, end) or in all if None."""
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
    """Returns the macro of the named vector statement; row_max and rescale depend on the rescale threshold."""
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


def wait(t, tile, s, c, outstanding):
    """Waits until a thread's own copies have arrived, except the `outstanding` groups that were started last."""
    return T.ptx_wait_group(outstanding)


def meet(t, tile, s, c):
    """Makes all threads of the block wait for each other.

    What each has waited for is there for all, and what they have read may be copied over.
    """
    return T.sync_threads()


MACROS = {
    ("issue", "load_k"): load_k,
    ("issue", "load_v"): load_v,
    ("keep", "load_q"): keep_q,
    ("run", "frag_q"): frag_q,
    ("run", "frag_k"): frag_k,
    ("run", "frag_v"): frag_v,
    ("run", "mma0"): mma0,
    ("run", "mma1"): mma1,
}


def macro_of(op, c):
    """Returns the macro, or function, that emits an operation of this kind and statement."""
    if op.kind in ("wait", "sync"):
        return {"wait": wait, "sync": meet}[op.kind]
    return MACROS.get((op.kind, whole(op.statement))) or vector_statement(whole(op.statement), c)
