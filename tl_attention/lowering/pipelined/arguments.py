"""Schedule -> the arguments of the pipelined kernel. No tilelang here."""

from __future__ import annotations

from typing import Any

from tl_attention.program.planned import Planned
from tl_attention.program.program import Program


def arguments(planned: Planned) -> dict[str, Any]:
    """What the schedule fixes of the kernel, with a Program or without."""
    schedule, program = planned.schedule, planned.program
    return {
        "block_M": schedule.block_M,
        "block_N": schedule.block_N,
        "threads": schedule.threads,
        "pipeline": pipeline_arguments(program) if program else {"num_stages": schedule.num_stages},
        "least_blocks": program.least_blocks if program else 1,
        "descending": schedule.kv_order == "descending",
    }


def pipeline_arguments(program: Program) -> dict[str, list[int]]:
    """`order` and `stage` of T.Pipelined, one entry per statement in source order.

    Never together with `num_stages`: TileLang 0.1.15 then drops both without a word.
    """
    emitted = [op for op in program.consumer if op.kind in ("run", "issue")]
    first, _ = program.iterations_around
    position = {op.statement: index for index, op in enumerate(emitted)}
    lag = {op.statement: op.lag for op in emitted}
    names = program.table.names
    return {"order": [position[name] for name in names], "stage": [lag[name] - first for name in names]}
