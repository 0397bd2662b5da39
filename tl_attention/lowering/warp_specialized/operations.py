"""The operations of an iteration: macros, or functions that give an expression, and which of them emits what.

Each is called with `(t, tile, s, c)`, and what it needs besides by name. `t` is a KV block of the tile, counted from the
first one to be worked on; `s` is the memory of the thread block, `c` the constants.
"""

import tilelang.language as T

from tl_attention.hardware.warpgroup import OWN, TURN, WARPGROUP
from tl_attention.loop.table import whole
from tl_attention.lowering.warp_specialized.rings import release, release_q, slot, wait_full
from tl_attention.lowering.warp_specialized.vector import vector_statement

# --- loads and products ------------------------------------------------------------------------------------------


def wait_k(t, tile, s, c):
    """Waits until K of the block has arrived."""
    return wait_full(s.K, tile.base + t)


def wait_v(t, tile, s, c):
    """Waits until V of the block has arrived."""
    return wait_full(s.V, tile.base + t)


def issue_mma0(t, tile, s, c):
    """Starts acc_s = Q K^T. TileLang commits each product as a group of its own, which waits count."""
    return T.wgmma_gemm(
        s.Q_local if c.kernel.q_operand == "registers" else s.Q.shared[tile.wg, :, :],
        s.K.shared[slot(s.K, tile.base + t), :, :],
        s.acc_s,
        transpose_B=True,
        clear_accum=True,
        policy=T.GemmWarpPolicy.FullRow,
    )


def issue_mma1(t, tile, s, c):
    """Starts acc_o += acc_s_cast V. The first one clears acc_o, which nothing else initialises."""
    return T.wgmma_gemm(
        s.P_shared[tile.wg, :, :] if c.kernel.p_operand == "shared" else s.acc_s_cast,
        s.V.shared[slot(s.V, tile.base + t), :, :],
        s.acc_o,
        clear_accum=t == 0,
        policy=T.GemmWarpPolicy.FullRow,
    )


@T.macro
def share_p(t, tile, s, c):
    """P, which each warp has written 16 rows of, is there for the product: fenced by each, and all of them are here."""
    T.fence_proxy_async()
    T.sync_threads(OWN + tile.wg, WARPGROUP)


# A wait names no register: without the fence the compiler may move a use of the result before it.


@T.macro
def wait_mma0(t, tile, s, c, outstanding):
    """Waits until acc_s is there. As many as `outstanding` products that were started later may be in flight."""
    T.wait_wgmma(outstanding)
    T.warpgroup_fence_operand(s.acc_s, 0, c.block_N // 2)


@T.macro
def wait_mma1(t, tile, s, c, outstanding):
    """Waits until acc_o is there. As many as `outstanding` products that were started later may be in flight."""
    T.wait_wgmma(outstanding)
    T.warpgroup_fence_operand(s.acc_o, 0, c.head_dim_v // 2)


def release_k(t, tile, s, c):
    """Says that K of the block has been read: its buffer is free."""
    return release(s.K, slot(s.K, tile.base + t), c)


def release_v(t, tile, s, c):
    """Says that V of the block has been read: its buffer is free."""
    return release(s.V, slot(s.V, tile.base + t), c)


def release_rows_of_q(t, tile, s, c):
    """Says that Q has been read: its buffer is free."""
    return release_q(tile.wg, s)


# --- who goes first ----------------------------------------------------------------------------------------------


def take_turn(t, tile, s, c):
    """Waits until it is this warpgroup's turn to issue products."""
    return T.sync_threads(TURN + tile.wg, 2 * WARPGROUP)


def pass_turn(t, tile, s, c):
    """Gives the turn to the other warpgroup."""
    return T.named_barrier_arrive(TURN + 1 - tile.wg, 2 * WARPGROUP)


@T.macro
def hold(t, tile, s, c, registers):
    """Keeps the wait or release that follows behind all exponentials in `registers`, (first, end), of acc_s.

    A thread has two rows of acc_s, so N / 2 registers of N columns.
    """
    # A call holds four in eight: all of them take two.
    for first in (registers[0], registers[0] + 4):
        T.call_extern("handle", f"tl_attention_hold<{first}, {registers[1]}>", s.acc_s.data, s.scale)


def hold_last(t, tile, s, c, registers):
    """Keeps the wait or release that follows behind the last exponential in `registers`, (first, end), of acc_s.

    A thread has two rows of acc_s, so N / 2 registers of N columns. ptxas may still move the other exponentials.
    """
    return T.call_extern("handle", f"tl_attention_hold_last<{registers[1] - 1}>", s.acc_s.data, s.scale)


def resume(t, tile, s, c):
    """Keeps the exponentials that follow behind what stands before."""
    return T.call_extern("handle", "tl_attention_resume", s.scores_max.data, s.scale)


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
    """The macro of an operation."""
    statement = whole(op.statement)
    return vector_statement(statement, c) if op.kind == "run" else MACROS[op.kind, statement]
