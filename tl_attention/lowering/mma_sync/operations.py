"""The operations of an iteration: macros, or functions that give an expression, and which of them emits what.

Each is called with `(t, tile, s, c)`, and what it needs besides by name. `t` is a KV block of the tile, counted from the
first one to be worked on; `s` is the memory of the thread block, `c` the constants.
"""

import tilelang.language as T

from tl_attention.loop.table import whole
from tl_attention.lowering.mma_sync.copies import load_k, load_v
from tl_attention.lowering.mma_sync.fragments import frag_k, frag_q, frag_v, keep_q, mma0, mma1
from tl_attention.lowering.mma_sync.vector import vector_statement


def wait(t, tile, s, c, outstanding):
    """Waits until a thread's own copies have arrived, but for so many groups that were started last."""
    return T.ptx_wait_group(outstanding)


def meet(t, tile, s, c):
    """Lets all threads meet: what each has waited for is there for all, and what they have read may be copied over."""
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
    """The macro of an operation."""
    if op.kind in ("wait", "sync"):
        return {"wait": wait, "sync": meet}[op.kind]
    return MACROS.get((op.kind, whole(op.statement))) or vector_statement(whole(op.statement), c)
