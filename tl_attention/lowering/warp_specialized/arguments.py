"""Schedule -> the arguments of the warp-specialised kernel. No tilelang here."""

from __future__ import annotations

from typing import Any

from tl_attention.lowering.loop import emitted_arguments
from tl_attention.lowering.warp_specialized.resources import split_registers
from tl_attention.program.planned import Planned


def arguments(planned: Planned) -> dict[str, Any]:
    """What the schedule fixes of the kernel, whose rings go on from tile to tile."""
    return emitted_arguments(planned, rings_of_a_tile=False, registers=split_registers(planned.schedule))
