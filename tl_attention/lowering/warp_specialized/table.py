"""The statements of the warp-specialised kernel's loop: `kernel.py` runs these."""

from __future__ import annotations

from tl_attention.loop.emitted import SOFTMAX, emitted_table
from tl_attention.loop.table import statement

TABLE = emitted_table(
    ("load_k", "mma0", "mask", *SOFTMAX, "load_v", "mma1"),
    [statement("product", "mma0", "Q_shared K_shared", "acc_s", "acc_s = Q_shared @ K_shared^T", "mma0_cleared")],
)
