"""Schedule -> the arguments of the TileLang program that it asks for. No tilelang here."""

from __future__ import annotations

from typing import Any

from tl_attention.limits import SPLIT_REGISTERS
from tl_attention.derivation import derive
from tl_attention.program import CONSUMER, Program, Step, phases
from tl_attention.schedule import Schedule
from tl_attention.statements import NAMES


def kernel_arguments(schedule: Schedule) -> dict[str, Any]:
    """What the `attention_kernel` of the schedule's lowering takes from it."""
    tile = {"block_M": schedule.block_M, "block_N": schedule.block_N}
    if schedule.lowering == "warp_specialized":
        return {**tile, **specialized_arguments(derive(schedule)), "registers": SPLIT_REGISTERS.get(schedule.block_M)}
    program = derive(schedule) if schedule.has_program else None
    return {
        **tile,
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
    return {"order": [position[name] for name in NAMES], "stage": [lag[name] - first for name in NAMES]}


def specialized_arguments(program: Program) -> dict[str, Any]:
    """The Program's phases as `kernel.warp_specialized` emits them.

    A `pin` stands before each wait for MMA1 that follows exponentials: the kernel holds the wait behind one of them.
    """
    view = phases(program, CONSUMER)

    def iteration(t: int, steps: tuple[Step, ...]) -> tuple[int, tuple[tuple[str, str, int, int], ...]]:
        operations = []
        exponentials = False
        for step in steps:
            op = step.op
            if op.kind == "wait" and op.statement == "mma1" and exponentials:
                operations.append(("pin", "exp", op.lag, 0))
            # acc_s holds exponentials until the next product writes it.
            exponentials = op.statement == "exp" or exponentials and op.statement != "mma0"
            operations.append((op.kind, op.statement, op.lag, step.outstanding))
        return t, tuple(operations)

    return {
        "buffers": (program.buffers["load_k"], program.buffers["load_v"]),
        "loads": tuple(op.statement for op in program.producer if op.kind == "issue"),
        "prologue": tuple(iteration(t, steps) for t, steps in view.prologue),
        "steady": iteration(*view.steady),
        "epilogue": tuple(iteration(t - view.blocks, steps) for t, steps in view.epilogue),
        "least_blocks": program.least_blocks,
    }
