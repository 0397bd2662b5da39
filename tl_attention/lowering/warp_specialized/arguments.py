"""Schedule -> the arguments of the warp-specialised kernel. No tilelang here."""

from __future__ import annotations

from typing import Any

from tl_attention.lowering.loop import Loop
from tl_attention.lowering.warp_specialized.resources import split_registers
from tl_attention.program.planned import Planned


def arguments(planned: Planned) -> dict[str, Any]:
    """What the schedule fixes of the kernel: its tile, its Program, and its options, none left open."""
    schedule, program = planned.schedule, planned.program
    assert program is not None
    resolved = {
        "k_stages": program.buffers["load_k"],
        "v_stages": program.buffers["load_v"],
        "registers": split_registers(schedule),
    }
    return {
        "block_M": schedule.block_M,
        "block_N": schedule.block_N,
        "loop": Loop.of(program),
        "kernel": schedule.kernel.model_copy(update=resolved),
        "softmax": schedule.softmax,
        "rings_of_a_tile": False,
    }
