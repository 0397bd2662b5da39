"""The statements of the mma.sync kernel's loop: `kernel.py` runs these.

A product is a vector statement here: for the thread that runs it, it is done when the next one that needs its registers
starts. Products read fragments, which are loaded from shared memory by statements of their own.
"""

from __future__ import annotations

from dataclasses import replace

from tl_attention.loop.emitted import SOFTMAX, emitted_table
from tl_attention.loop.table import statement
from tl_attention.schedule.keys import Keys

_OWN = (
    statement("vector", "frag_q", "Q_shared", "Q_local", "Q_local = Q_shared"),
    statement("vector", "frag_k", "K_shared", "K_local", "K_local = K_shared"),
    statement("vector", "frag_v", "V_shared", "V_local", "V_local = V_shared"),
    statement(
        "vector",
        "mma0",
        "Q_local K_local",
        "acc_s",
        "acc_s += Q_local @ K_local^T",
        "mma0_fragments",
        later_chunks_read=("acc_s",),
    ),
    statement("vector", "mma1", "acc_s_cast V_local acc_o", "acc_o", "acc_o += acc_s_cast @ V_local", "mma1_fragments"),
)
_TABLE = emitted_table(("load_k", "frag_q", "frag_k", "mma0", "mask", *SOFTMAX, "load_v", "frag_v", "mma1"), _OWN)
# A chunk has 16 or more columns of what is multiplied: of the head dimension for Q K^T, of the keys for P V.
TABLE = replace(
    _TABLE,
    splittable={
        **_TABLE.splittable,
        "frag_q": ("Q_local",),
        "frag_k": ("K_local",),
        "mma0": ("Q_local", "K_local"),
        "frag_v": ("V_local",),
        "mma1": ("V_local", "acc_s_cast"),
    },
    slotted=("Q_local", "K_local", "V_local"),
)


def absent(keys: Keys) -> tuple[str, ...]:
    """The statements that the loop lacks where Q stays in registers."""
    return ("frag_q",) if keys.kernel.q_operand == "registers" else ()
