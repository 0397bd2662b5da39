"""What the warp-specialised kernel does beyond the loop's own operations, and what it leaves out: pass by pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tl_attention.loop.table import whole
from tl_attention.program.operation import Iteration, Operation
from tl_attention.program.phases import Phases
from tl_attention.schedule.schedule import Schedule

# A release of Q_shared names the load that fills it, once a tile.
Q_LOAD = "load_q"
PRODUCTS = "products"


def without_first_rescale(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """A prologue without the rescale of block 0: acc_o is 0 there, and its first product clears it."""
    identities = {name for name, s in schedule.table.by_name.items() if s.identity == "zero"}

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        t, operations = iteration
        return tuple(op for op in operations if op.statement not in identities or t > op.lag)

    return replace(phases, prologue=_changed(phases.prologue, change))


def holds(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """What keeps waits and releases behind the exponentials that come before them in the order.

    `loose`: the last exponential of the chunk before comes first; `exact`: all of it does, and the next chunk after.
    """
    if schedule.kernel.waits == "free":
        return phases
    table, exact = schedule.table, schedule.kernel.waits == "exact"

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        changed: list[Operation] = []
        ran: Operation | None = None
        held = False
        for op in iteration.operations:
            exponentials = op.kind == "run" and whole(op.statement) == "exp"
            late = op.kind == "release" or (op.kind == "wait" and op.statement in table.products)
            if late and ran:
                first, end = table.by_name[ran.statement].columns or (0, schedule.block_N)
                # A thread has two rows and every fourth pair of columns: N / 2 registers for N columns.
                kind = "hold" if exact else "hold_last"
                changed.append(ran._replace(kind=kind, registers=(first // 2, end // 2)))
                ran, held = None, exact
            if exponentials and held:
                changed.append(op._replace(kind="resume"))
            if exponentials:
                ran, held = op, False
            changed.append(op)
        return tuple(changed)

    return _everywhere(phases, change)


def turns(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Two warpgroups take turns to issue the products of an iteration, and to wait for what the first of them reads."""
    if not schedule.kernel.ping_pong:
        return phases

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        operations = iteration.operations
        issues = [place for place, op in enumerate(operations) if op.kind == "issue"]
        if not issues:
            return operations
        first, behind = issues[0], issues[-1] + 1
        if first and operations[first - 1].kind == "wait":
            first -= 1
        turn, given = Operation("turn", PRODUCTS, 0), Operation("pass", PRODUCTS, 0)
        return (*operations[:first], turn, *operations[first:behind], given, *operations[behind:])

    return _everywhere(phases, change)


def q_release(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Q_shared is released once the last product that reads it is done, which may be before the epilogue.

    Unless it is free earlier, copied to registers before the loop, or only later, when the output went through it.
    """
    if schedule.kernel.q_operand == "registers" or schedule.kernel.output == "tma":
        return phases
    readers = [name for name in schedule.table.products if "Q_shared" in schedule.table.by_name[name].reads]
    epilogue = list(phases.epilogue) or [Iteration(0, ())]
    waits = [
        (number, place)
        for number, iteration in enumerate(epilogue)
        for place, op in enumerate(iteration.operations)
        if op.kind == "wait" and op.statement in readers
    ]
    number, place = waits[-1] if waits else (0, -1)
    t, operations = epilogue[number]
    # With the last KV block.
    release = Operation("release", Q_LOAD, t + 1)
    epilogue[number] = Iteration(t, (*operations[: place + 1], release, *operations[place + 1 :]))
    return replace(phases, epilogue=tuple(epilogue))


def p_shares(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """P in shared memory is shared with the product that reads it behind the last chunk of its cast."""
    if schedule.kernel.p_operand == "registers":
        return phases
    last = [name for name in schedule.table.by_name if whole(name) == "cast"][-1]

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        changed: list[Operation] = []
        for op in iteration.operations:
            changed.append(op)
            if op.kind == "run" and op.statement == last:
                changed.append(op._replace(kind="share"))
        return tuple(changed)

    return _everywhere(phases, change)


# In any order: none looks at what another one adds or leaves out.
PASSES = (without_first_rescale, holds, turns, q_release, p_shares)

Change = Callable[[Iteration], tuple[Operation, ...]]


def _changed(iterations: Sequence[Iteration], change: Change) -> tuple[Iteration, ...]:
    return tuple(iteration._replace(operations=change(iteration)) for iteration in iterations)


def _everywhere(phases: Phases, change: Change) -> Phases:
    (steady,) = _changed([phases.steady], change)
    return Phases(_changed(phases.prologue, change), steady, _changed(phases.epilogue, change))
