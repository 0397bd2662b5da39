"""Counts the softmax's floating-point instructions of a thread for one KV block, by formula and in the machine code.

If the scale is fused with the maximum's subtraction, each score takes one instruction for two: an FFMA for an FADD and
an FMUL.
"""

from __future__ import annotations

from collections.abc import Sequence

from tl_attention.errors import InputError
from tl_attention.lab.machine_code.sass import Loop, steady
from tl_attention.problem.warpgroup import WARP
from tl_attention.schedule.schedule import Schedule

# Adds, products, both at once, larger ones of two, and exponentials.
COUNTED = ("FFMA", "FMUL", "FADD", "FMNMX", "MUFU")
# An mma.sync multiplies 16 rows by 8 columns, 16 deep; a thread has two of the rows, a pair of each 8 columns.
ROWS, COLUMNS, DEPTH = 16, 8, 16
ROWS_OF_A_THREAD = 2
# A row is four threads': two exchanges bring them together.
EXCHANGES = 2


def by_formula(schedule: Schedule, head_dim: int) -> dict[str, int]:
    """Counts the instructions of mma_sync's statements, for a thread with s scores and o accumulators, in r rows.

    row_max compares s scores, and twice r with other threads'. scale is an exponential for each row, exp one for each
    score: behind an FFMA each if the scale is fused, with r products of the maxima by the scale, which both share; else
    behind an FADD and an FMUL each. row_sum adds s times, r of them in an FFMA with the product by scores_scale.
    rescale multiplies o times; a rescale that waits for a threshold has no count of its own.
    """
    s, o = (schedule.block_M * columns // schedule.threads for columns in (schedule.block_N, head_dim))
    r = ROWS_OF_A_THREAD * schedule.block_M * WARP // (schedule.threads * ROWS)
    exponents, fused = s + r, schedule.softmax.fused_scale
    return {
        "FFMA": r + (exponents if fused else 0),
        "FMUL": o + (r if fused else exponents),
        "FADD": s - r + (0 if fused else exponents),
        "FMNMX": s + EXCHANGES * r,
        "MUFU": exponents,
    }


def counted(schedule: Schedule, head_dim: int, loops: Sequence[Loop]) -> dict[str, int]:
    """Counts the steady loop's instructions for a KV block. Raises InputError unless it has a block's products."""
    products = products_of_a_block(schedule, head_dim)
    loop = steady(loops)
    found = loop.products if loop else 0
    if loop is None or found != products:
        raise InputError(f"the steady loop has {found} mma.sync, expected the {products} of a KV block")
    return {name: loop.counts.get(name, 0) for name in COUNTED}


def products_of_a_block(schedule: Schedule, head_dim: int) -> int:
    """Returns a warp's number of mma.sync for one KV block, of both products."""
    M = schedule.block_M * WARP // schedule.threads
    return 2 * (M // ROWS) * (schedule.block_N * head_dim // (COLUMNS * DEPTH))
