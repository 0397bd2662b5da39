"""Schedule -> the arguments of the warp-specialised kernel. No tilelang here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tl_attention.hardware.device import HOPPER
from tl_attention.loop.exp2 import COEFFICIENTS
from tl_attention.loop.statements import PRODUCTS, chunk_range, whole
from tl_attention.lowering.warp_specialized.resources import split_registers
from tl_attention.program.derivation import derive
from tl_attention.program.program import CONSUMER, Step, phases
from tl_attention.schedule.schedule import Schedule

# Kind, statement, lag, and what the kind needs besides: products left in flight, or registers to hold.
Operation = tuple[str, str, int, int | tuple[int, int]]
Iteration = tuple[int, tuple[Operation, ...]]
KERNEL_ARGUMENTS = ("tile_scheduler", "tile_order", "cluster", "ping_pong", "q_operand", "output")


def arguments(schedule: Schedule) -> dict[str, Any]:
    """The Program's phases and the schedule's options as `kernel.attention_kernel` takes them: plain values only."""
    program = derive(schedule)
    view = phases(program, CONSUMER)
    chunks = _chunks(schedule)
    kernel, softmax = schedule.kernel, schedule.softmax
    polynomial = softmax.exp2_polynomial
    epilogue = [(t - view.blocks, _operations(steps, schedule, chunks)) for t, steps in view.epilogue]
    return {
        "block_M": schedule.block_M,
        "block_N": schedule.block_N,
        "buffers": (program.buffers["load_k"], program.buffers["load_v"]),
        "loads": tuple(op.statement for op in program.producer if op.kind == "issue"),
        "prologue": tuple(
            (t, _operations(_without_idle_rescale(steps), schedule, chunks)) for t, steps in view.prologue
        ),
        "steady": (view.steady[0], _operations(view.steady[1], schedule, chunks)),
        "epilogue": tuple(_with_q_release(epilogue)) if _releases_q(schedule) else tuple(epilogue),
        "least_blocks": program.least_blocks,
        "chunks": chunks,
        "sms": HOPPER.sms,
        "registers": split_registers(schedule),
        **{key: getattr(kernel, key) for key in KERNEL_ARGUMENTS},
        **{key: getattr(softmax, key) for key in ("fused_scale", "row_max", "row_sum", "rescale_threshold")},
        "exp2_polynomial": polynomial and (polynomial.every, polynomial.first, COEFFICIENTS[polynomial.degree]),
    }


def _without_idle_rescale(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Block 0 has nothing to rescale: its product clears acc_o."""
    return tuple(step for step in steps if whole(step.op.statement) != "rescale" or step.block)


def _chunks(schedule: Schedule) -> dict[str, tuple[int, int]]:
    """(first column, end) of each chunk of a split statement."""
    columns = {name: schedule.split.columns(whole(name)) for name in schedule.statements if name != whole(name)}
    return {name: chunk_range(widths, int(name.partition(".")[2])) for name, widths in columns.items() if widths}


def _operations(
    steps: tuple[Step, ...], schedule: Schedule, chunks: dict[str, tuple[int, int]]
) -> tuple[Operation, ...]:
    """One iteration, with what holds waits and releases behind the exponentials that come before them in the order."""
    operations: list[Operation] = []
    columns: tuple[int, int] | None = None
    held = False
    for step in steps:
        op = step.op
        late = op.kind == "release" or (op.kind == "wait" and op.statement in PRODUCTS)
        if late and columns is not None and schedule.kernel.waits != "free":
            # A thread has two rows and every fourth pair of columns: N / 2 registers for N columns.
            first, end = columns[0] // 2, columns[1] // 2
            exact = schedule.kernel.waits == "exact"
            operations.append(("hold", "exp", 0, (first, end)) if exact else ("hold_last", "exp", 0, end - 1))
            columns, held = None, exact
        if whole(op.statement) == "exp" and op.kind == "run":
            if held:
                operations.append(("resume", "exp", 0, 0))
            columns, held = chunks.get(op.statement, (0, schedule.block_N)), False
        operations.append((op.kind, op.statement, op.lag, step.outstanding))
    issues = [index for index, (kind, *_) in enumerate(operations) if kind == "issue"]
    if schedule.kernel.ping_pong and issues:
        operations.insert(issues[-1] + 1, ("pass", "products", 0, 0))
        operations.insert(_first_of(operations, issues[0]), ("turn", "products", 0, 0))
    return tuple(operations)


def _first_of(operations: list[Operation], issue: int) -> int:
    """The place of a product's issue, or of the wait for its buffer right before."""
    return issue - 1 if issue and operations[issue - 1][0] == "wait" else issue


def _releases_q(schedule: Schedule) -> bool:
    """Whether Q_shared is free with the last MMA0: else it is copied to registers, or the output goes through it."""
    return schedule.kernel.q_operand == "shared" and schedule.kernel.output != "tma"


def _with_q_release(epilogue: list[Iteration]) -> Iterator[Iteration]:
    """The epilogue with Q's release right after the last wait for MMA0, which may lie before the epilogue."""
    waits = [index for index, (_, ops) in enumerate(epilogue) if any(op[:2] == ("wait", "mma0") for op in ops)]
    release = ("release", "load_q", 0, 0)
    if not waits:
        yield (epilogue[0][0] if epilogue else 0, (release,))
    for index, (t, operations) in enumerate(epilogue):
        if waits and index == waits[-1]:
            place = max(i for i, op in enumerate(operations) if op[:2] == ("wait", "mma0")) + 1
            operations = (*operations[:place], release, *operations[place:])
        yield (t, operations)
