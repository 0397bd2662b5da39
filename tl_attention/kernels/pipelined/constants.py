"""The pipelined kernel has its tile, its number of threads and the arguments of T.Pipelined as constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tl_attention.kernels.shared.constants import Constants, variant_values
from tl_attention.kernels.shared.device_code import DeviceCode
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.program.program import Program


@dataclass(frozen=True, kw_only=True)
class PipelinedConstants(Constants):
    """PipelinedConstants are the constants of a T.Pipelined kernel; `pipeline` holds the arguments of T.Pipelined."""

    threads: int
    pipeline: dict[str, Any]
    least_blocks: int
    descending: bool


def constants(planned: Planned, variant: Variant, device_code: Sequence[DeviceCode]) -> PipelinedConstants:
    """Returns what is fixed when a kernel is traced: tile, dtype, options, and the keywords of T.Pipelined.

    Without a Program these are num_stages alone.
    """
    schedule, program = planned.schedule, planned.program
    return PipelinedConstants(
        **variant_values(variant, device_code),
        block_M=schedule.block_M,
        block_N=schedule.block_N,
        threads=schedule.threads,
        pipeline=pipeline_arguments(program) if program else {"num_stages": schedule.num_stages},
        least_blocks=program.least_blocks if program else 1,
        descending=schedule.kv_order == "descending",
    )


def pipeline_arguments(program: Program) -> dict[str, list[int]]:
    """Returns `order` and `stage` of T.Pipelined, one entry per statement in source order.

    Never together with `num_stages`: TileLang 0.1.15 then drops both without a word.
    """
    emitted = [op for op in program.consumer if op.kind in ("run", "issue")]
    first, _ = program.iterations_around
    position = {op.statement: index for index, op in enumerate(emitted)}
    lag = {op.statement: op.lag for op in emitted}
    names = program.table.names
    return {"order": [position[name] for name in names], "stage": [lag[name] - first for name in names]}
