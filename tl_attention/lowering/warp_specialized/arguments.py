"""Schedule -> the arguments of the warp-specialised kernel. No tilelang here."""

from __future__ import annotations

from typing import Any

from tl_attention.hardware.device import HOPPER
from tl_attention.loop.exp2 import COEFFICIENTS
from tl_attention.lowering.warp_specialized.resources import split_registers
from tl_attention.program.derivation import derive
from tl_attention.schedule.schedule import Schedule

KERNEL_ARGUMENTS = ("tile_scheduler", "tile_order", "cluster", "ping_pong", "q_operand", "output")


def arguments(schedule: Schedule) -> dict[str, Any]:
    """The Program's phases and the schedule's options as `kernel.attention_kernel` takes them: plain values only."""
    program = derive(schedule)
    phases = program.phases
    kernel, softmax = schedule.kernel, schedule.softmax
    polynomial = softmax.exp2_polynomial
    return {
        "block_M": schedule.block_M,
        "block_N": schedule.block_N,
        "buffers": (program.buffers["load_k"], program.buffers["load_v"]),
        "loads": program.loads,
        "prologue": phases.prologue,
        "steady": phases.steady,
        "epilogue": phases.epilogue,
        "least_blocks": program.least_blocks,
        # (first column, end) of each chunk of a split statement.
        "chunks": {s.name: s.columns for s in program.table.statements if s.columns},
        "sms": HOPPER.sms,
        "registers": split_registers(schedule),
        **{key: getattr(kernel, key) for key in KERNEL_ARGUMENTS},
        **{key: getattr(softmax, key) for key in ("fused_scale", "row_max", "row_sum", "rescale_threshold")},
        "exp2_polynomial": polynomial and (polynomial.every, polynomial.first, COEFFICIENTS[polynomial.degree]),
    }
