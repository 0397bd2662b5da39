"""Schedule -> the arguments of the warp-specialised kernel. No tilelang here."""

from __future__ import annotations

from typing import Any, NamedTuple

from tl_attention.loop.statements import PRODUCTS, chunk_range, whole
from tl_attention.lowering.warp_specialized.resources import split_registers
from tl_attention.program.derivation import derive
from tl_attention.program.program import CONSUMER, Step, phases
from tl_attention.schedule.schedule import Schedule


class Operation(NamedTuple):
    """One operation of an iteration: in iteration t it concerns KV block t - lag.

    `outstanding`: products left in flight by a wait; `registers`: those to hold, (first, end).
    """

    kind: str
    statement: str
    lag: int
    outstanding: int = 0
    registers: tuple[int, int] = (0, 0)


class Iteration(NamedTuple):
    """The operations of iteration t; in an epilogue t counts from the number of blocks."""

    t: int
    operations: tuple[Operation, ...]


class Loop(NamedTuple):
    """The Program's iterations: `steady` repeats up to `end`, counted from the number of blocks, and what they need.

    `loads` is the producer's order, `columns` gives (first, end) of each chunk of a split statement.
    """

    prologue: tuple[Iteration, ...]
    steady: Iteration
    epilogue: tuple[Iteration, ...]
    end: int
    least_blocks: int
    loads: tuple[str, ...]
    columns: dict[str, tuple[int, int]]

    @property
    def masked_lag(self) -> int:
        """Up to this many iterations after the last block that needs a mask, a statement still works on it."""
        return max(op.lag for op in self.steady.operations if op.kind == "run")


def arguments(schedule: Schedule) -> dict[str, Any]:
    """What `kernel.attention_kernel` takes of the schedule: its tile, its Program, and its options, none left open."""
    program = derive(schedule)
    resolved = {
        "k_stages": program.buffers["load_k"],
        "v_stages": program.buffers["load_v"],
        "registers": split_registers(schedule),
    }
    return {
        "block_M": schedule.block_M,
        "block_N": schedule.block_N,
        "loop": _loop(schedule),
        "kernel": schedule.kernel.model_copy(update=resolved),
        "softmax": schedule.softmax,
    }


def _loop(schedule: Schedule) -> Loop:
    program = derive(schedule)
    view = phases(program, CONSUMER)
    chunks = _chunks(schedule)
    epilogue = [Iteration(t - view.blocks, _operations(steps, schedule, chunks)) for t, steps in view.epilogue]
    return Loop(
        prologue=tuple(
            Iteration(t, _operations(_without_idle_rescale(steps), schedule, chunks)) for t, steps in view.prologue
        ),
        steady=Iteration(view.steady[0], _operations(view.steady[1], schedule, chunks)),
        epilogue=_with_q_release(epilogue) if _releases_q(schedule) else tuple(epilogue),
        end=epilogue[0].t if epilogue else 0,
        least_blocks=program.least_blocks,
        loads=tuple(op.statement for op in program.producer if op.kind == "issue"),
        columns=chunks,
    )


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
            held = schedule.kernel.waits == "exact"
            registers = columns[0] // 2, columns[1] // 2
            operations.append(Operation("hold" if held else "hold_last", "exp", 0, registers=registers))
            columns = None
        if whole(op.statement) == "exp" and op.kind == "run":
            if held:
                operations.append(Operation("resume", "exp", 0))
            columns, held = chunks.get(op.statement, (0, schedule.block_N)), False
        operations.append(Operation(op.kind, op.statement, op.lag, step.outstanding))
    issues = [index for index, op in enumerate(operations) if op.kind == "issue"]
    if schedule.kernel.ping_pong and issues:
        operations.insert(issues[-1] + 1, Operation("pass", "products", 0))
        operations.insert(_first_of(operations, issues[0]), Operation("turn", "products", 0))
    return tuple(operations)


def _first_of(operations: list[Operation], issue: int) -> int:
    """The place of a product's issue, or of the wait for its buffer right before."""
    return issue - 1 if issue and operations[issue - 1].kind == "wait" else issue


def _releases_q(schedule: Schedule) -> bool:
    """Whether Q_shared is free with the last MMA0: else it is copied to registers, or the output goes through it."""
    return schedule.kernel.q_operand == "shared" and schedule.kernel.output != "tma"


def _with_q_release(epilogue: list[Iteration]) -> tuple[Iteration, ...]:
    """The epilogue with Q's release right after the last wait for MMA0, or first, if that wait lies before it."""
    iterations = epilogue or [Iteration(0, ())]
    waits = [
        (number, place)
        for number, (_, operations) in enumerate(iterations)
        for place, op in enumerate(operations)
        if op[:2] == ("wait", "mma0")
    ]
    number, place = waits[-1] if waits else (0, -1)
    t, operations = iterations[number]
    release = Operation("release", "load_q", t + 1)
    iterations[number] = Iteration(t, (*operations[: place + 1], release, *operations[place + 1 :]))
    return tuple(iterations)
