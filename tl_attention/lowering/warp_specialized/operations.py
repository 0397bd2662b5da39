"""The operations of an iteration: each concerns KV block t of a tile, which counts from the first to be worked on."""

import tilelang.language as T

from tl_attention.hardware.warpgroup import OWN, TURN, WARPGROUP
from tl_attention.loop.table import whole
from tl_attention.lowering.warp_specialized.rings import release, release_q, slot, wait_full
from tl_attention.lowering.warp_specialized.vector import vector_statement


def operation(op, c):
    """What emits an operation, called with (op, t, tile, s, c, masked).

    `op` is the operation itself, `t` its KV block, `tile` where the tile is, `s` the block's memory, `c` what is known
    when the kernel is traced; keys may be hidden in `masked` blocks.
    """
    if op.kind == "run":
        return vector_statement(whole(op.statement), c)
    return MACROS[op.kind, whole(op.statement)]


# --- loads and products ------------------------------------------------------------------------------------------


def wait_k(op, t, tile, s, c, masked):
    """Until K of the block has arrived."""
    return wait_full(s.K, tile.base + t)


def wait_v(op, t, tile, s, c, masked):
    """Until V of the block has arrived."""
    return wait_full(s.V, tile.base + t)


def issue_mma0(op, t, tile, s, c, masked):
    """Starts acc_s = Q K^T."""
    return T.wgmma_gemm(
        s.Q_local if c.kernel.q_operand == "registers" else s.Q.shared[tile.wg, :, :],
        s.K.shared[slot(s.K, tile.base + t), :, :],
        s.acc_s,
        transpose_B=True,
        clear_accum=True,
        policy=T.GemmWarpPolicy.FullRow,
    )


def issue_mma1(op, t, tile, s, c, masked):
    """Starts acc_o += acc_s_cast V. The first one clears acc_o, which nothing else initialises."""
    return T.wgmma_gemm(
        s.P_shared[tile.wg, :, :] if c.kernel.p_operand == "shared" else s.acc_s_cast,
        s.V.shared[slot(s.V, tile.base + t), :, :],
        s.acc_o,
        clear_accum=t == 0,
        policy=T.GemmWarpPolicy.FullRow,
    )


@T.macro
def share_p(op, t, tile, s, c, masked):
    """P, which each warp has written 16 rows of, is there for the product: fenced by each, and all of them are here."""
    T.fence_proxy_async()
    T.sync_threads(OWN + tile.wg, WARPGROUP)


# A wait names no register: without the fence the compiler may move a use of the result before it.


@T.macro
def wait_mma0(op, t, tile, s, c, masked):
    """Until acc_s is there; products that were started later may still be in flight."""
    T.wait_wgmma(op.outstanding)
    T.warpgroup_fence_operand(s.acc_s, 0, c.block_N // 2)


@T.macro
def wait_mma1(op, t, tile, s, c, masked):
    """Until acc_o is there; products that were started later may still be in flight."""
    T.wait_wgmma(op.outstanding)
    T.warpgroup_fence_operand(s.acc_o, 0, c.head_dim_v // 2)


def release_k(op, t, tile, s, c, masked):
    """K of the block has been read."""
    return release(s.K, slot(s.K, tile.base + t), c)


def release_v(op, t, tile, s, c, masked):
    """V of the block has been read."""
    return release(s.V, slot(s.V, tile.base + t), c)


def release_rows_of_q(op, t, tile, s, c, masked):
    """Q has been read."""
    return release_q(tile.wg, s)


# --- who goes first ----------------------------------------------------------------------------------------------


def take_turn(op, t, tile, s, c, masked):
    """Until it is this warpgroup's turn to issue products."""
    return T.sync_threads(TURN + tile.wg, 2 * WARPGROUP)


def pass_turn(op, t, tile, s, c, masked):
    """The other warpgroup's turn."""
    return T.named_barrier_arrive(TURN + 1 - tile.wg, 2 * WARPGROUP)


def hold(op, t, tile, s, c, masked):
    """The exponentials of the chunk before come before what follows."""
    return hold_registers(op.registers, s)


@T.macro
def hold_registers(registers, s):
    """Holds registers (first, end) of acc_s."""
    # A call holds four in eight: all of them take two.
    for first in (registers[0], registers[0] + 4):
        T.call_extern("handle", f"tl_attention_hold<{first}, {registers[1]}>", s.acc_s.data, s.scale)


def hold_last(op, t, tile, s, c, masked):
    """The last exponential of the chunk before comes before what follows."""
    return T.call_extern("handle", f"tl_attention_hold_last<{op.registers[1] - 1}>", s.acc_s.data, s.scale)


def resume(op, t, tile, s, c, masked):
    """The exponentials that follow come after what stands before."""
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
