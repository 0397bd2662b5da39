"""This FlashAttention forward reads fragments by ldmatrix, multiplies by mma.sync and loads by cp.async.

Every thread computes and loads. A warp has 16 rows of each 16 * warps of the tile, so that its fragments of K and V
serve all of them. KV blocks come from the last to the first, so that those that need a mask come first.
"""

from dataclasses import dataclass

import tilelang.language as T

from tl_attention.kernels.mma_sync.transfers import load_q, store
from tl_attention.kernels.shared.iterations import LoopTile, loop
from tl_attention.kernels.shared.rows import kv_head
from tl_attention.kernels.shared.signature import aligned, trace
from tl_attention.kernels.shared.softmax import LOG2_E


@T.macro
def launch(given, c):
    """Launches a thread block for each row tile of each head, which computes the tile's output rows."""
    batch, heads, seq_q, _ = given.Q.shape
    with T.Kernel(T.ceildiv(seq_q, c.block_M), heads, batch, threads=c.threads, prelude=c.prelude) as (bx, by, bz):
        T.annotate_min_blocks_per_sm(c.kernel.blocks_per_sm)
        if c.strided:
            aligned(given, c)
        s = block_state(given, c)
        if c.traced:
            trace(given)
        work(bx, by, bz, s, c)


@T.macro
def work(bx, by, bz, s, c):
    """Computes one row tile, from the load of Q to the store of the output."""
    first_row = T.alloc_var("int32")
    blocks = T.alloc_var("int32")
    visible = T.alloc_var("int32")
    first = T.alloc_var("int32") if c.mask.left is not None else 0
    cut = T.alloc_var("int32") if c.mask.left is not None else 0
    # A head's last tile is its longest: it comes first.
    first_row = (T.ceildiv(s.seq_q, c.block_M) - 1 - bx) * c.block_M if c.mask.grows else bx * c.block_M
    blocks = c.mask.end_block(T.ceildiv(s.seq_kv, c.block_N), first_row + c.block_M + s.past_len, c.block_N, T)
    visible = c.mask.end_whole(s.seq_kv // c.block_N, first_row + s.past_len, c.block_N, T)
    if c.mask.left is not None:
        first = c.mask.first_block(first_row + s.past_len, c.block_N, T)
        blocks = T.max(blocks - first, c.loop.least_blocks)
        visible -= first
        cut = c.mask.first_whole(first_row + c.block_M + s.past_len, c.block_N, T) - first
    else:
        # Short loops get blocks that are masked whole.
        blocks = T.max(blocks, c.loop.least_blocks)
    tile = LoopTile(
        first, blocks, first_row, by, bz, bz, s.seq_q, s.seq_kv, visible, cut, kv_head=kv_head(by, s.given, c)
    )
    load_q(first_row, tile, s, c)
    start(s, c)
    loop(tile, s, c)
    store(first_row, tile, s, c)


@dataclass(frozen=True)
class State:
    """State holds what a block's macros share under the name `s`, its tensors, tiles, registers and sizes."""

    given: object
    Q_shared: object
    K_shared: object
    V_shared: object
    Q_local: object
    K_local: object
    V_local: object
    acc_s: object
    acc_s_cast: object
    acc_o: object
    scores_max: object
    scores_max_prev: object
    scores_scale: object
    denominator: object
    seq_q: object
    seq_kv: object
    past_len: object  # keys before query 0
    scale: object  # scores times this are exponents of 2
    thread: object


@T.macro
def block_state(given, c):
    """Allocates a block's tiles in shared memory and a thread's registers, and returns them as a State.

    A thread has two rows of each product's 16, and pairs of columns.
    """
    products = c.block_M // c.rows
    Q_shared = T.alloc_shared([c.block_M * c.head_dim], c.dtype)
    K_shared = T.alloc_shared([c.kernel.k_stages * c.block_N * c.head_dim], c.dtype)
    V_shared = T.alloc_shared([c.kernel.v_stages * c.block_N * c.head_dim_v], c.dtype)
    Q_local = T.alloc_local([steps_in_registers(c.fragments.q_steps, c.head_dim) * products * 8], c.dtype)
    K_local = T.alloc_local([steps_in_registers(c.fragments.k_steps, c.head_dim) * c.block_N // 2], c.dtype)
    V_local = T.alloc_local([steps_in_registers(c.fragments.v_steps, c.block_N) * c.head_dim_v // 2], c.dtype)
    acc_s = T.alloc_local([products * c.block_N // 2], "float32")
    acc_s_cast = T.alloc_local([products * c.block_N // 2], c.dtype)
    acc_o = T.alloc_local([products * c.head_dim_v // 2], "float32")
    scores_max = T.alloc_local([2 * products], "float32")
    scores_max_prev = T.alloc_local([2 * products], "float32")
    scores_scale = T.alloc_local([2 * products], "float32")
    denominator = T.alloc_local([2 * products], "float32")
    return State(
        given=given,
        Q_shared=Q_shared,
        K_shared=K_shared,
        V_shared=V_shared,
        Q_local=Q_local,
        K_local=K_local,
        V_local=V_local,
        acc_s=acc_s,
        acc_s_cast=acc_s_cast,
        acc_o=acc_o,
        scores_max=scores_max,
        scores_max_prev=scores_max_prev,
        scores_scale=scores_scale,
        denominator=denominator,
        seq_q=given.Q.shape[2],
        seq_kv=given.K.shape[2],
        past_len=given.K.shape[2] - given.Q.shape[2],
        scale=given.softmax_scale * LOG2_E,
        thread=T.get_thread_binding(),
    )


def steps_in_registers(steps, columns):
    """Returns how many steps of 16 columns registers hold: `steps`, or all columns' steps if that is None."""
    return columns // 16 if steps is None else steps


@T.macro
def start(s, c):
    """Sets acc_o and the sums to 0 and the maxima to -inf, as of rows that have seen no key."""
    products = c.block_M // c.rows
    for i in T.unroll(products * c.head_dim_v // 2):
        s.acc_o[i] = 0
    for i in T.unroll(2 * products):
        s.scores_max[i] = -T.infinity("float32")
        s.denominator[i] = 0
