"""What the mma.sync kernel does for its loads: it waits for groups of cp.async, and all its threads meet at barriers.

A thread's wait shows it its own copies, a barrier behind it those of all; and what all warps have read may be copied
over behind a barrier. The Program's waits, acquires and releases become such waits and barriers, as few as are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tl_attention.loop.table import Table
from tl_attention.program.derivation import derive
from tl_attention.program.operation import Iteration, Operation
from tl_attention.program.phases import Phases
from tl_attention.schedule.schedule import Schedule

# Q's load comes before all others, once a tile.
Q_LOAD = "load_q"
SYNC = Operation("sync", "threads", 0)
# How often the steady state is repeated in the loops that are looked at: short ones, and one that shows all that it can be
# in, as rings have 8 buffers at most.
REPEATED = (0, 1, 2, 3, 24)
# A load, and its KV block.
Load = tuple[str, int]
# Where an operation stands: the phase, the iteration's number in it, and its place there.
Place = tuple[str, int, int]


def waits_and_barriers(phases: Phases, schedule: Schedule) -> Phases:
    """Waits for groups of copies where a load is first waited for, and barriers where one is needed and none has been.

    Q's fragments are loaded before the loop where they stay in registers; else Q is waited for there, unless its first
    reader finds it waited for.
    """
    derived = derive(schedule)
    if schedule.kernel.q_operand == "registers":
        before = (Operation("wait", Q_LOAD, 0), Operation("keep", Q_LOAD, 0))
    elif found := _placed(phases, derived.table, derived.buffers):
        return found
    else:
        before = (Operation("wait", Q_LOAD, 0),)
    readers = {name for name in derived.table.names if "Q_shared" in derived.table.by_name[name].reads}
    reading = [any(op.statement in readers for op in iteration.operations) for iteration in phases.prologue]
    first = reading.index(True) if True in reading else len(reading)
    t = phases.prologue[first].t if True in reading else phases.steady.t
    prologue = (*phases.prologue[:first], Iteration(t, before), *phases.prologue[first:])
    with_q = replace(phases, prologue=prologue)
    return _placed(with_q, derived.table, derived.buffers, q_waited=True) or with_q


def _placed(phases: Phases, table: Table, buffers: dict[str, int], q_waited: bool = False) -> Phases | None:
    """The phases with their waits and barriers; None where Q is read before anything is waited for."""
    needed = _Needed()
    while True:
        before = needed.copy()
        for repeated in REPEATED:
            state = _State(table, buffers, needed)
            for place, op, t in _unrolled(phases, repeated):
                if not state.step(place, op, t - op.lag) and not q_waited:
                    return None
        if needed == before:
            break
    for barrier in sorted(needed.barriers):
        fewer = _Needed(needed.barriers - {barrier}, dict(needed.waits))
        if _enough(phases, table, buffers, fewer):
            needed = fewer

    def written(phase: str, iterations: tuple[Iteration, ...]) -> tuple[Iteration, ...]:
        return tuple(
            Iteration(t, tuple(needed.operations(phase, number, operations)))
            for number, (t, operations) in enumerate(iterations)
        )

    (steady,) = written("steady", (phases.steady,))
    return Phases(written("prologue", phases.prologue), steady, written("epilogue", phases.epilogue))


def _enough(phases: Phases, table: Table, buffers: dict[str, int], needed: _Needed) -> bool:
    """Whether nothing is needed besides."""
    tried = needed.copy()
    for repeated in REPEATED:
        state = _State(table, buffers, tried)
        for place, op, t in _unrolled(phases, repeated):
            state.step(place, op, t - op.lag)
        if tried != needed:
            return False
    return True


def _unrolled(phases: Phases, repeated: int) -> Iterator[tuple[Place, Operation, int]]:
    """Every operation of a loop that repeats its steady state so often, with where it stands, and its iteration."""
    blocks = phases.least_blocks + repeated
    listed = [("prologue", number, iteration) for number, iteration in enumerate(phases.prologue)]
    listed += [
        ("steady", 0, Iteration(t, phases.steady.operations)) for t in range(phases.steady.t, blocks + phases.end)
    ]
    listed += [
        ("epilogue", number, Iteration(blocks + t, operations)) for number, (t, operations) in enumerate(phases.epilogue)
    ]
    for phase, number, (t, operations) in listed:
        for index, op in enumerate(operations):
            yield (phase, number, index), op, t


@dataclass
class _Needed:
    """Before which operations a barrier stands, and how many copies' groups each wait leaves in flight."""

    barriers: set[Place] = field(default_factory=set)
    waits: dict[Place, int] = field(default_factory=dict)

    def copy(self) -> _Needed:
        return _Needed({*self.barriers}, dict(self.waits))

    def operations(self, phase: str, number: int, operations: tuple[Operation, ...]) -> Iterator[Operation]:
        """An iteration's operations with these, and without those that they stand for."""
        for index, op in enumerate(operations):
            place = phase, number, index
            if place in self.barriers:
                yield SYNC
            if place in self.waits:
                yield op._replace(outstanding=self.waits[place])
            elif op.kind not in ("wait", "acquire", "release"):
                yield op


class _State:
    """What has been copied, waited for, met behind and read, as the loop goes on; it notes what is needed."""

    def __init__(self, table: Table, buffers: dict[str, int], needed: _Needed):
        self.table, self.buffers, self.needed = table, buffers, needed
        # Each load is a group.
        self.groups: list[Load] = [(Q_LOAD, 0)]
        # How many of them are there for the thread that waited, and for all of them.
        self.arrived = self.shared = 0
        self.read: set[Load] = set()

    def step(self, place: Place, op: Operation, block: int) -> bool:
        """Run one. False where it reads Q before that was waited for."""
        if place in self.needed.barriers:
            self.meet()
        if op.kind == "wait":
            self.wait(place, (op.statement, block) if op.statement != Q_LOAD else (Q_LOAD, 0))
        elif op.kind == "acquire" and (op.statement, block - self.buffers[op.statement]) in self.read:
            self.need(place)
        elif op.kind == "issue":
            self.groups.append((op.statement, block))
        elif op.kind in ("run", "keep"):
            return self.reads(place, op, block)
        return True

    def wait(self, place: Place, load: Load) -> None:
        group = self.group(load)
        if group >= self.arrived:
            outstanding = len(self.groups) - group - 1
            # In every iteration of the steady state the same, which is enough for all of them.
            self.needed.waits[place] = min(outstanding, self.needed.waits.get(place, outstanding))
        if place in self.needed.waits:
            self.arrived = max(self.arrived, len(self.groups) - self.needed.waits[place])

    def group(self, load: Load) -> int:
        """Its number. What is read before it is loaded is for the proof of the values to refuse."""
        return self.groups.index(load) if load in self.groups else 0

    def reads(self, place: Place, op: Operation, block: int) -> bool:
        loads = [(load, block) for load in self.table.loads_of(op.statement)] if op.kind == "run" else []
        if op.kind == "keep" or "Q_shared" in self.table.by_name[op.statement].reads:
            loads.append((Q_LOAD, 0))
        groups = [self.group(load) for load in loads]
        if any(group >= self.arrived for group in groups):
            return False
        if any(group >= self.shared for group in groups):
            self.need(place)
        self.read.update(loads)
        return True

    def need(self, place: Place) -> None:
        """A barrier, right before."""
        self.needed.barriers.add(place)
        self.meet()

    def meet(self) -> None:
        self.shared = self.arrived
        self.read.clear()


PASSES = (waits_and_barriers,)
