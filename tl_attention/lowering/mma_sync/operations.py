"""The operations of an iteration: each concerns KV block t of a tile, which counts from the first to be worked on."""

import tilelang.language as T

from tl_attention.loop.table import whole
from tl_attention.lowering.mma_sync.copies import load_k, load_v
from tl_attention.lowering.mma_sync.fragments import frag_k, frag_q, frag_v, keep_q, mma0, mma1
from tl_attention.lowering.mma_sync.vector import vector_statement


def operation(op, c):
    """What emits an operation, called with (op, t, tile, s, c, masked).

    `op` is the operation itself, `t` its KV block, `tile` where the tile is, `s` the block's memory, `c` what is known
    when the kernel is traced; keys may be hidden in `masked` blocks.
    """
    if op.kind == "wait":
        return wait
    if op.kind == "sync":
        return meet
    if (op.kind, whole(op.statement)) in MACROS:
        return MACROS[op.kind, whole(op.statement)]
    return vector_statement(whole(op.statement), c)


def wait(op, t, tile, s, c, masked):
    """Until a thread's own copies have arrived, but the last groups."""
    return T.ptx_wait_group(op.outstanding)


def meet(op, t, tile, s, c, masked):
    """All threads: what they have waited for is there for all, and what they have read may be copied over."""
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
