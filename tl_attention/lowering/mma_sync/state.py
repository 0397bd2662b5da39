"""What a thread block has: tiles in shared memory, and the registers of its threads."""

from dataclasses import dataclass

import tilelang.language as T

from tl_attention.lowering.softmax import LOG2_E


@dataclass(frozen=True)
class State:
    """What macros know as `s`: tensors, tiles, a thread's registers, and sizes.

    Scores times `scale` are exponents of 2. `past_len` keys are before query 0.
    """

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
    past_len: object
    scale: object
    thread: object


@T.macro
def block_state(given, c):
    """The tensors, and all that is allocated. A thread has two rows of each product's 16, and pairs of columns."""
    products = c.block_M // c.rows
    Q_shared = T.alloc_shared([c.block_M * c.head_dim], c.dtype)
    K_shared = T.alloc_shared([c.kernel.k_stages * c.block_N * c.head_dim], c.dtype)
    V_shared = T.alloc_shared([c.kernel.v_stages * c.block_N * c.head_dim_v], c.dtype)
    Q_local = T.alloc_local([room(c.fragments.q_steps, c.head_dim) * products * 8], c.dtype)
    K_local = T.alloc_local([room(c.fragments.k_steps, c.head_dim) * c.block_N // 2], c.dtype)
    V_local = T.alloc_local([room(c.fragments.v_steps, c.block_N) * c.head_dim_v // 2], c.dtype)
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


def room(steps, columns):
    """Steps of 16 columns that there is room for; of all columns unless said otherwise."""
    return columns // 16 if steps is None else steps


@T.macro
def start(s, c):
    """A row has seen no key yet."""
    products = c.block_M // c.rows
    for i in T.unroll(products * c.head_dim_v // 2):
        s.acc_o[i] = 0
    for i in T.unroll(2 * products):
        s.scores_max[i] = -T.infinity("float32")
        s.denominator[i] = 0
