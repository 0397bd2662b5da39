"""The statements of the warp-specialised kernel's loop: `kernel.py` runs these."""

from __future__ import annotations

from dataclasses import replace

from tl_attention.loop.attention import SOURCE
from tl_attention.loop.table import Statement, statement

# mma0 clears its accumulator, so the mask comes after it, and only for blocks at a boundary; row_max starts from the
# maximum so far, and row_sum adds to the sum so far, which its first chunk scales.
CHANGED: dict[str, Statement] = {
    s.name: s
    for s in (
        statement("product", "mma0", "Q_shared K_shared", "acc_s", "acc_s = Q_shared @ K_shared^T", "mma0_cleared"),
        statement(
            "vector",
            "mask",
            "acc_s",
            "acc_s",
            "acc_s = -inf where masked",
            "mask_after",
            of_block=True,
            boundary_only=True,
        ),
        statement(
            "vector",
            "row_max",
            "acc_s scores_max",
            "scores_max",
            "scores_max = max(scores_max, max_j acc_s)",
            "row_max_kept",
        ),
        statement(
            "vector",
            "row_sum",
            "acc_s denominator scores_scale",
            "denominator",
            "denominator = denominator scores_scale + sum_j acc_s",
            "row_sum_added",
            first_chunk_reads=("scores_scale",),
        ),
    )
}
FUSED = {"max_init": "row_max", "max_merge": "row_max", "sum_merge": "row_sum"}
NAMES = ("load_k", "mma0", "mask", *(name for name in SOURCE.names[3:] if name not in FUSED))
TABLE = replace(
    SOURCE,
    statements=tuple(CHANGED.get(name, SOURCE.by_name[name]) for name in NAMES),
    fused=FUSED,
    moved={"mask": "row_max"},
)
