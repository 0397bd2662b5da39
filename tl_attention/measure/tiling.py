"""How a schedule's kernel cuts a problem, from its keys and its Program."""

from __future__ import annotations

from tl_attention.problem.traffic import Tiling
from tl_attention.program.planned import Planned


def tiling_of(planned: Planned) -> Tiling:
    """Its tiles. Of `inferred`, whose loads the compiler chooses, as if no load went past the end."""
    schedule, program = planned.schedule, planned.program
    # Only warp-specialised kernels have clusters, and load by TMA.
    by_tma = schedule.lowering == "warp_specialized"
    return Tiling(
        schedule.block_M,
        schedule.block_N,
        cluster=schedule.kernel.cluster if by_tma else 1,
        least_blocks=program.least_blocks if program else 1,
        whole_boxes=by_tma,
    )
