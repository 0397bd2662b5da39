"""These statements of the softmax differ from `attention.SOURCE` where a kernel is emitted operation by operation.

mma0 clears its accumulator, so the mask comes after it, and only for blocks at a boundary; row_max starts from the
maximum so far, and row_sum adds to the sum so far, which its first chunk scales.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tl_attention.schedule.loop.attention import SOURCE
from tl_attention.schedule.loop.table import Statement, Table, statement

CHANGED = (
    statement("vector", "mask", "acc_s", "acc_s", "acc_s = -inf where masked", of_block=True, boundary_only=True),
    statement("vector", "row_max", "acc_s scores_max", "scores_max", "scores_max = max(scores_max, max_j acc_s)"),
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
FUSED = {"max_init": "row_max", "max_merge": "row_max", "sum_merge": "row_sum"}
SOFTMAX = tuple(name for name in SOURCE.names[SOURCE.number["max_prev"] : SOURCE.number["load_v"]] if name not in FUSED)


def emitted_table(names: Iterable[str], own: Iterable[Statement]) -> Table:
    """Returns a Table of the named statements in this order, each from `own`, else from CHANGED, else from SOURCE."""
    of_name = SOURCE.by_name | {s.name: s for s in (*CHANGED, *own)}
    return replace(SOURCE, statements=tuple(of_name[name] for name in names), fused=FUSED, moved={"mask": "row_max"})
