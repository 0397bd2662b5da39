"""Each operation of an iteration has a macro; vector statements work on the 64 rows of one warpgroup."""

import tilelang.language as T

from tl_attention.kernels.shared.device_code import is_bf16
from tl_attention.kernels.shared.rows import query_of
from tl_attention.kernels.shared.softmax import LOG2_E, exponent, finite_max
from tl_attention.kernels.warp_specialized.scores import change_scores, mask
from tl_attention.kernels.warp_specialized.transfers import release, release_q, slot, wait_full
from tl_attention.problem.warpgroup import OWN, ROWS, TURN, WARPGROUP
from tl_attention.schedule.loop.table import whole


def vector_statement(statement, c):
    """Returns the macro that computes the named vector statement, in the form that c.softmax and c.kernel choose."""
    return {
        "mask": mask,
        "max_prev": max_prev,
        "row_max": row_max if c.softmax.rescale_threshold == 0 else row_max_beyond_threshold,
        "scale": scale,
        "exp": exp,
        "row_sum": {"thread": row_sum_of_thread, "row": row_sum}[c.softmax.row_sum],
        "cast": {"registers": cast, "shared": cast_to_shared}[c.kernel.p_operand],
        "rescale": rescale if c.softmax.rescale_threshold == 0 else rescale_where_max_grew,
    }[statement]


# --- what a thread has ---------------------------------------------------------------------------------------------


def per_thread_layout():
    """Returns the layout of a (64, 4) fragment in which each of a row's four lanes has one element of that row."""
    return T.Fragment([ROWS, 4], forward_fn=lambda i, lane: (i // 16 * 32 + i % 8 * 4 + lane, i // 8 % 2))


def lane_of(column):
    """Returns the number, 0 to 3, of the lane among a row's four that has this column of an accumulator."""
    return column // 2 % 4


def first_of_lane(column):
    """Says whether a column is the first that its lane has."""
    return T.And(column < 8, column % 2 == 0)


def per_chain_layout():
    """Returns the layout of a (64, 8) fragment in which each of a row's four lanes has two elements of that row.

    They are for its even and its odd columns.
    """
    return T.Fragment(
        [ROWS, 8], forward_fn=lambda i, chain: (i // 16 * 32 + i % 8 * 4 + chain // 2, i // 8 % 2 * 2 + chain % 2)
    )


def chain_of(column):
    """Returns the number of the chain, of a row's eight, that takes the maximum over this column."""
    return column % 8


def inside(columns, j):
    """Returns the condition that column j is in `columns`, a pair (first, end)."""
    return T.And(j >= columns[0], j < columns[1])


# --- the maximum ---------------------------------------------------------------------------------------------------


@T.macro
def max_prev(t, tile, s, c):
    """scores_max_prev = scores_max."""
    T.copy(s.scores_max, s.scores_max_prev)


@T.macro
def row_max(t, tile, s, c, masked):
    """scores_max = max(scores_max, max_j acc_s), with scores as features change them; the mask did so if `masked`."""
    if c.features.at("scores") and not masked:
        change_scores(t, tile, s, c, alone=False)
    MAXIMUM[c.softmax.row_max](s.scores_max, s, c)


@T.macro
def row_max_beyond_threshold(t, tile, s, c, masked):
    """scores_max = max_j acc_s where that is larger by more than the threshold: else every exponential stays small."""
    block_max = T.alloc_fragment([ROWS], "float32")
    if c.features.at("scores") and not masked:
        change_scores(t, tile, s, c, alone=False)
    MAXIMUM[c.softmax.row_max](block_max, s, c)
    for i in T.Parallel(ROWS):
        grows = (block_max[i] - s.scores_max[i]) * s.scale > T.float32(c.softmax.rescale_threshold)
        s.scores_max[i] = T.if_then_else(grows, block_max[i], s.scores_max[i])


@T.macro
def maximum_of_threads(row_maximum, s, c):
    """row_maximum = max(scores_max, max_j acc_s), of each thread's columns first, then of the row's threads."""
    of_thread = T.alloc_fragment([ROWS, 4], "float32")
    T.annotate_layout({of_thread: per_thread_layout()})
    for i, lane in T.Parallel(ROWS, 4):
        of_thread[i, lane] = s.scores_max[i]
    for i, j in T.Parallel(ROWS, c.block_N):
        of_thread[i, lane_of(j)] = T.max(of_thread[i, lane_of(j)], s.acc_s[i, j])
    T.reduce_max(of_thread, row_maximum, dim=1)


@T.macro
def maximum_of_chains(row_maximum, s, c):
    """row_maximum = max(scores_max, max_j acc_s), with a thread's even and odd columns in chains of half the length."""
    of_chain = T.alloc_fragment([ROWS, 8], "float32")
    T.annotate_layout({of_chain: per_chain_layout()})
    for i, chain in T.Parallel(ROWS, 8):
        of_chain[i, chain] = T.if_then_else(chain % 2 == 0, s.scores_max[i], -T.infinity("float32"))
    for i, j in T.Parallel(ROWS, c.block_N):
        of_chain[i, chain_of(j)] = T.max(of_chain[i, chain_of(j)], s.acc_s[i, j])
    T.reduce_max(of_chain, row_maximum, dim=1)


@T.macro
def maximum_of_row(row_maximum, s, c):
    """row_maximum = max_j acc_s, or the larger of that and its old value if the rescale threshold is 0."""
    T.reduce_max(s.acc_s, row_maximum, dim=1, clear=c.softmax.rescale_threshold != 0)


MAXIMUM = {"thread": maximum_of_threads, "chains": maximum_of_chains, "row": maximum_of_row}

# --- the exponentials ----------------------------------------------------------------------------------------------


@T.macro
def scale(t, tile, s, c, masked):
    """scores_scale = exp2(scale (scores_max_prev - scores_max))."""
    for i in T.Parallel(ROWS):
        s.scores_scale[i] = factor_of_sums(i, t, tile, s, c, masked)


def factor_of_sums(i, t, tile, s, c, masked):
    """Returns the factor that rescales row i's earlier sum; 1 where all keys of the block lie before the row's window.

    Such blocks come last, as many as the tile's other rows need, and must change none of the row's bits. Elsewhere a
    rounding may make the factor differ from 1 where the maximum stays.
    """
    growth = exponent(s.scores_max_prev[i], finite_max(s.scores_max[i], masked), s, c)
    if c.mask.left is not None and masked:
        own_key, first_key = tile.own_key(tile.first_row + query_of(i, c)), tile.kv_block(t) * c.block_N
        growth = T.if_then_else(c.mask.behind(c.block_N - 1, own_key, first_key), T.float32(0), growth)
    return T.exp2(growth)


@T.macro
def exp(t, tile, s, c, masked, columns=None):
    """acc_s = exp2(scale (acc_s - scores_max)), in `columns` (first, end) or in all if None."""
    for i, j in T.Parallel(ROWS, c.block_N):
        if columns is None or inside(columns, j):
            s.acc_s[i, j] = exp2(exponent(s.acc_s[i, j], finite_max(s.scores_max[i], masked), s, c), i, j, c)


def exp2(x, i, j, c):
    """Returns 2^x, computed by a polynomial on the FMA units for the registers that softmax.exp2_polynomial chooses."""
    if c.softmax.exp2_polynomial is None:
        return T.exp2(x)
    first, every = c.softmax.exp2_polynomial.first, c.softmax.exp2_polynomial.every
    register = j // 8 * 4 + i // 8 % 2 * 2 + j % 2
    chosen = T.And(register >= first, (register - first) % every == 0)
    return T.if_then_else(chosen, T.call_extern("float32", "tl_attention_exp2", x), T.exp2(x))


@T.macro
def cast(t, tile, s, c, columns=None):
    """acc_s_cast = acc_s in the precision of V, in `columns` (first, end) or in all if None.

    The product that read it before has been waited for.
    """
    if columns is None:
        T.copy(s.acc_s, s.acc_s_cast)
    else:
        for i, j in T.Parallel(ROWS, c.block_N):
            if inside(columns, j):
                s.acc_s_cast[i, j] = s.acc_s[i, j]


@T.macro
def cast_to_shared(t, tile, s, c, columns=None):
    """P_shared = acc_s, in the precision of V: TileLang's copy would make all warpgroups meet."""
    T.call_extern("handle", put_function(columns, c), s.acc_s.data, T.address_of(s.P_shared[tile.wg, 0, 0]))


def put_function(columns, c):
    """Returns the name of the device function that stores P in shared memory, in all columns if `columns` is None."""
    first, end = (0, c.block_N) if columns is None else columns
    return f"tl_attention_store_p<{c.block_N}, {first}, {end}, {is_bf16(c)}>"


# --- the sum, and what is rescaled ---------------------------------------------------------------------------------


@T.macro
def row_sum_of_thread(t, tile, s, c, columns=None):
    """Adds a thread's acc_s in `columns`, or all, to denominator, which the first chunk scales by scores_scale.

    The scaling is one FMA with the lane's first score, whatever the compiler would fuse: rows have the same bits in
    every kernel.
    """
    scales = columns is None or columns[0] == 0
    if scales:
        for i, lane in T.Parallel(ROWS, 4):
            s.denominator[i, lane] = T.fma(s.denominator[i, lane], s.scores_scale[i], s.acc_s[i, 2 * lane])
    for i, j in T.Parallel(ROWS, c.block_N):
        if (columns is None or inside(columns, j)) and not (scales and first_of_lane(j)):
            s.denominator[i, lane_of(j)] += s.acc_s[i, j]


@T.macro
def row_sum(t, tile, s, c):
    """denominator = denominator scores_scale + sum_j acc_s."""
    row_total = T.alloc_fragment([ROWS], "float32")
    T.reduce_sum(s.acc_s, row_total, dim=1)
    for i in T.Parallel(ROWS):
        s.denominator[i] = T.fma(s.denominator[i], s.scores_scale[i], row_total[i])


@T.macro
def rescale(t, tile, s, c, columns=None):
    """acc_o *= scores_scale, in `columns` (first, end) or in all if None."""
    for i, j in T.Parallel(ROWS, c.head_dim_v):
        if columns is None or inside(columns, j):
            s.acc_o[i, j] *= s.scores_scale[i]


@T.macro
def rescale_where_max_grew(t, tile, s, c, columns=None):
    """acc_o *= scores_scale, unless that is 1 in all rows of the warp."""
    if T.call_extern("bool", "tl_attention_grew", s.scores_scale.data):
        rescale(t, tile, s, c, columns=columns)


# --- loads and products ------------------------------------------------------------------------------------------


def wait_k(t, tile, s, c):
    """Waits until K of the block has arrived."""
    return wait_full(s.K, tile.base + t)


def wait_v(t, tile, s, c):
    """Waits until V of the block has arrived."""
    return wait_full(s.V, tile.base + t)


def issue_mma0(t, tile, s, c):
    """Starts the product acc_s = Q K^T for a KV block, and does not wait for it.

    TileLang commits each product as a group of its own, which waits count.
    """
    return T.wgmma_gemm(
        s.Q_local if c.kernel.q_operand == "registers" else s.Q.shared[tile.wg, :, :],
        s.K.shared[slot(s.K, tile.base + t), :, :],
        s.acc_s,
        transpose_B=True,
        clear_accum=True,
        policy=T.GemmWarpPolicy.FullRow,
    )


def issue_mma1(t, tile, s, c):
    """Starts acc_o += P V for a KV block, or acc_o = P V for a tile's first, which initialises it; does not wait."""
    return T.wgmma_gemm(
        s.P_shared[tile.wg, :, :] if c.kernel.p_operand == "shared" else s.acc_s_cast,
        s.V.shared[slot(s.V, tile.base + t), :, :],
        s.acc_o,
        clear_accum=t == 0,
        policy=T.GemmWarpPolicy.FullRow,
    )


@T.macro
def share_p(t, tile, s, c):
    """Makes P in shared memory visible to the product that reads it.

    Each warp, which has written 16 rows of it, fences, and all warps meet.
    """
    T.fence_proxy_async()
    T.sync_threads(OWN + tile.wg, WARPGROUP)


# A wait names no register: without the fence the compiler may move a use of the result before it.


@T.macro
def wait_mma0(t, tile, s, c, outstanding):
    """Waits for the product that writes acc_s; up to `outstanding` products that started later may be in flight."""
    T.wait_wgmma(outstanding)
    T.warpgroup_fence_operand(s.acc_s, 0, c.block_N // 2)


@T.macro
def wait_mma1(t, tile, s, c, outstanding):
    """Waits for the product that adds to acc_o; up to `outstanding` products that started later may be in flight."""
    T.wait_wgmma(outstanding)
    T.warpgroup_fence_operand(s.acc_o, 0, c.head_dim_v // 2)


def release_k(t, tile, s, c):
    """Signals that the warp has read K of the block, so that its buffer may be filled again."""
    return release(s.K, slot(s.K, tile.base + t), c)


def release_v(t, tile, s, c):
    """Signals that the warp has read V of the block, so that its buffer may be filled again."""
    return release(s.V, slot(s.V, tile.base + t), c)


def release_rows_of_q(t, tile, s, c):
    """Signals that the warp has read Q, so that its buffer may be filled again."""
    return release_q(tile.wg, s)


# --- who goes first ----------------------------------------------------------------------------------------------


def take_turn(t, tile, s, c):
    """Waits until it is this warpgroup's turn to issue products."""
    return T.sync_threads(TURN + tile.wg, 2 * WARPGROUP)


def pass_turn(t, tile, s, c):
    """Gives the turn to the other warpgroup."""
    return T.named_barrier_arrive(TURN + 1 - tile.wg, 2 * WARPGROUP)


def never_negative(s, c):
    """Returns a number that a hold compares with 0. A head's own factor, which nothing has checked, is left out."""
    return s.given.softmax_scale * LOG2_E if c.features.at("first") else s.scale


@T.macro
def hold(t, tile, s, c, registers):
    """Keeps the next wait or release behind the exponentials in all of acc_s's `registers`, a pair (first, end).

    A thread has two rows of acc_s, so N / 2 registers of N columns.
    """
    # A call holds four in eight: all of them take two.
    for first in (registers[0], registers[0] + 4):
        T.call_extern("handle", f"tl_attention_hold<{first}, {registers[1]}>", s.acc_s.data, never_negative(s, c))


def hold_last(t, tile, s, c, registers):
    """Keeps the next wait or release behind the last exponential in acc_s's `registers`, a pair (first, end).

    A thread has two rows of acc_s, so N / 2 registers of N columns. ptxas may still move the other exponentials.
    """
    return T.call_extern("handle", f"tl_attention_hold_last<{registers[1] - 1}>", s.acc_s.data, never_negative(s, c))


def resume(t, tile, s, c):
    """Keeps the compiler from moving the next exponentials before the operations that precede them."""
    return T.call_extern("handle", "tl_attention_resume", s.scores_max.data, never_negative(s, c))


MACROS = {
    ("wait", "load_k"): wait_k,
    ("wait", "load_v"): wait_v,
    ("issue", "mma0"): issue_mma0,
    ("issue", "mma1"): issue_mma1,
    ("wait", "mma0"): wait_mma0,
    ("wait", "mma1"): wait_mma1,
    ("release", "load_k"): release_k,
    ("release", "load_v"): release_v,
    ("release", "load_q"): release_rows_of_q,
    ("share", "cast"): share_p,
    ("turn", "products"): take_turn,
    ("pass", "products"): pass_turn,
    ("hold", "exp"): hold,
    ("hold_last", "exp"): hold_last,
    ("resume", "exp"): resume,
}


def macro_of(op, c):
    """Returns the macro, or function, that emits an operation of this kind and statement."""
    statement = whole(op.statement)
    return vector_statement(statement, c) if op.kind == "run" else MACROS[op.kind, statement]
