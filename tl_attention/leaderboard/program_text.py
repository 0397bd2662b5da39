"""The TileLang program of a schedule as one text: what the schedule uses of the kernel's modules, and nothing else."""

from __future__ import annotations

from tl_attention.leaderboard.specialise.text import specialised
from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

ENTRY = "attention_kernel"
# Argument of the entry whose numbers say nothing by their names: the order, lags and columns of operations.
NAMELESS = ("loop",)


def program_text(schedule: Schedule, variant: Variant) -> str:
    """The program, whose `attention_kernel()` gives the prim_func.

    The file that holds it has `T`, which is tilelang.language, and types.SimpleNamespace. Raises InputError without
    the formatter.
    """
    lowering = lowering_of(schedule)
    return specialised(lowering.files, ENTRY, {"variant": variant, **lowering.arguments(schedule)}, NAMELESS)
