"""Schedules see the mma.sync kernel like this: the statements of its loop, its rules, and what it adds to a Program.

A product is a vector statement here: for the thread that runs it, it is done when the next one that needs its registers
starts. Products read fragments, which are loaded from shared memory by statements of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tl_attention.kernels.shared.emitted_rules import (
    chunks_have_all_keys,
    fused_statements_are_in_one_group,
    masked_blocks_come_first,
    places_exist,
)
from tl_attention.problem.warpgroup import WARP
from tl_attention.program.program import Iteration, Operation, Phases
from tl_attention.schedule.dialect import Check
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.loop.emitted import SOFTMAX, emitted_table
from tl_attention.schedule.loop.table import Table, statement
from tl_attention.schedule.schedule import Schedule

_OWN = (
    statement("vector", "frag_q", "Q_shared", "Q_local", "Q_local = Q_shared", "frag"),
    statement("vector", "frag_k", "K_shared", "K_local", "K_local = K_shared", "frag"),
    statement("vector", "frag_v", "V_shared", "V_local", "V_local = V_shared", "frag"),
    statement(
        "vector", "mma0", "Q_local K_local", "acc_s", "acc_s += Q_local @ K_local^T", later_chunks_read=("acc_s",)
    ),
    statement("vector", "mma1", "acc_s_cast V_local acc_o", "acc_o", "acc_o += acc_s_cast @ V_local"),
)
_TABLE = emitted_table(("load_k", "frag_q", "frag_k", "mma0", "mask", *SOFTMAX, "load_v", "frag_v", "mma1"), _OWN)
# A chunk has 16 or more columns of what is multiplied: of the head dimension for Q K^T, of the keys for P V.
TABLE = replace(
    _TABLE,
    splittable={
        **_TABLE.splittable,
        "frag_q": ("Q_local",),
        "frag_k": ("K_local",),
        "mma0": ("Q_local", "K_local"),
        "frag_v": ("V_local",),
        "mma1": ("V_local", "acc_s_cast"),
    },
    slotted=("Q_local", "K_local", "V_local"),
)


def absent(keys: Keys) -> tuple[str, ...]:
    """Returns the names of statements that the loop lacks, ("frag_q",) if Q stays in registers, else ()."""
    return ("frag_q",) if keys.kernel.q_operand == "registers" else ()


# Of an mma.sync: m16n8k16.
ROWS_OF_A_PRODUCT = 16


def rows_at_once(threads: int) -> int:
    """Returns how many rows a block of `threads` threads computes at a time, 16 for each warp."""
    return threads // WARP * ROWS_OF_A_PRODUCT


def _warps_share_the_tile(s: Keys) -> None:
    rows = rows_at_once(s.threads)
    if s.block_M % rows:
        raise RuleBroken(
            f"{s.threads} threads do not fit block_M {s.block_M}: each of {s.threads // WARP} warps computes "
            f"{ROWS_OF_A_PRODUCT} rows at a time, so expected block_M to be a multiple of {rows}",
            "threads",
            others=(("block_M",),),
        )


def _places_say_how_many_buffers(s: Keys) -> None:
    for key, load in (("k_stages", "load_k"), ("v_stages", "load_v")):
        if getattr(s.kernel, key) is not None and load not in s.producers:
            raise RuleBroken(
                f"{load} has a position, which says how many buffers it fills: expected -1 for it, or no {key}",
                *("kernel", key),
                others=(("order",), ("stage",), ("group",)),
            )


# In this order: the first that is broken is told.
RULES: tuple[Check, ...] = (
    _warps_share_the_tile,
    masked_blocks_come_first,
    fused_statements_are_in_one_group(TABLE),
    # The columns of rescale and of mma0 are head_dim's: see limits.py.
    *chunks_have_all_keys("exp", "row_sum", "cast", "mma1"),
    _places_say_how_many_buffers,
    places_exist((*TABLE.fused, *TABLE.moved)),
)


# Q's load comes before all others, once a tile.
Q_LOAD = "load_q"
SYNC = Operation("sync", "threads", 0)
# How often the steady state is repeated in the loops that are looked at: short ones, and one that shows every state, as
# rings have 8 buffers at most.
REPEATED = (0, 1, 2, 3, 24)
# A load, and its KV block.
Load = tuple[str, int]
# Where an operation stands: the phase, the iteration's number in it, and its place there.
Place = tuple[str, int, int]


def waits_and_barriers(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases with waits for groups of copies, and with barriers of all threads only where needed.

    Q is waited for with the first load behind it; by itself where its first reader comes before that. Where it stays in
    registers, its fragments are loaded right behind a wait of its own.
    """
    table = schedule.table
    wait, keep = Operation("wait", Q_LOAD, 0), Operation("keep", Q_LOAD, 0)
    if schedule.kernel.q_operand == "registers":
        return _placed(_before_first_reader(phases, table, wait, keep), table, buffers)
    try:
        return _placed(phases, table, buffers)
    except _NotWaitedFor:
        return _placed(_before_first_reader(phases, table, wait), table, buffers)


def _before_first_reader(phases: Phases, table: Table, *added: Operation) -> Phases:
    """Returns the phases with these operations added before the first iteration that reads Q."""
    readers = {s.name for s in table.statements if s.kind != "load" and table.inputs.intersection(s.reads)}
    reads = [any(op.statement in readers for op in operations) for _, operations in phases.prologue]
    first = [*reads, True].index(True)
    t = (*phases.prologue, phases.steady)[first].t
    return replace(phases, prologue=(*phases.prologue[:first], Iteration(t, added), *phases.prologue[first:]))


def _placed(phases: Phases, table: Table, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases with the waits and barriers that they need, without barriers that can be left out."""
    needed = _Needed()
    while (more := _needed_besides(phases, table, buffers, needed)) != needed:
        needed = more
    for barrier in sorted(needed.barriers):
        fewer = _Needed(needed.barriers - {barrier}, needed.waits)
        if _needed_besides(phases, table, buffers, fewer) == fewer:
            needed = fewer

    def written(phase: str, *iterations: Iteration) -> tuple[Iteration, ...]:
        return tuple(
            Iteration(t, tuple(needed.operations(phase, number, operations)))
            for number, (t, operations) in enumerate(iterations)
        )

    [steady] = written("steady", phases.steady)
    return Phases(written("prologue", *phases.prologue), steady, written("epilogue", *phases.epilogue))


def _needed_besides(phases: Phases, table: Table, buffers: Mapping[str, int], needed: _Needed) -> _Needed:
    """Returns `needed`, with any waits and barriers added that loops of several lengths still lack."""
    found = needed.copy()
    for repeated in REPEATED:
        state = _State(table, buffers, found)
        for place, op, t in _unrolled(phases, repeated):
            state.step(place, op, t - op.lag)
    return found


def _unrolled(phases: Phases, repeated: int) -> Iterator[tuple[Place, Operation, int]]:
    """Yields (place, operation, iteration) for each operation of a loop with `repeated` blocks more than the fewest."""
    blocks = phases.least_blocks + repeated
    listed = [("prologue", number, iteration) for number, iteration in enumerate(phases.prologue)]
    listed += [
        ("steady", 0, Iteration(t, phases.steady.operations)) for t in range(phases.steady.t, blocks + phases.end)
    ]
    listed += [
        ("epilogue", number, Iteration(blocks + t, operations))
        for number, (t, operations) in enumerate(phases.epilogue)
    ]
    for phase, number, (t, operations) in listed:
        for index, op in enumerate(operations):
            yield (phase, number, index), op, t


class _NotWaitedFor(Exception):
    """This error means that a statement reads Q before any wait covers the copies of Q."""


@dataclass
class _Needed:
    """A _Needed holds the barriers and the waits that a loop needs."""

    barriers: set[Place] = field(default_factory=set)  # the places that need one before them
    waits: dict[Place, int] = field(default_factory=dict)  # how many copy groups each wait leaves in flight

    def copy(self) -> _Needed:
        return _Needed({*self.barriers}, dict(self.waits))

    def operations(self, phase: str, number: int, operations: tuple[Operation, ...]) -> Iterator[Operation]:
        """Yields the operations with the needed waits and barriers in place of their waits, acquires and releases."""
        for index, op in enumerate(operations):
            place = phase, number, index
            if place in self.barriers:
                yield SYNC
            if place in self.waits:
                yield op._replace(outstanding=self.waits[place])
            elif op.kind not in ("wait", "acquire", "release"):
                yield op


class _State:
    """A _State replays the copies, waits, barriers and reads of a loop, and adds what is missing to `needed`."""

    def __init__(self, table: Table, buffers: Mapping[str, int], needed: _Needed):
        self.table, self.buffers, self.needed = table, buffers, needed
        # Each load is a group, in the order of their issue.
        self.groups: list[Load] = [(Q_LOAD, 0)]
        # How many of them are there for the thread that waited, and for all of them.
        self.arrived = self.shared = 0
        self.read: set[Load] = set()

    def step(self, place: Place, op: Operation, block: int) -> None:
        """Replays one operation on a KV block, and notes a wait or barrier that it needs."""
        if place in self.needed.barriers:
            self.meet()
        if op.kind == "wait":
            self.wait(place, (op.statement, block) if op.statement != Q_LOAD else (Q_LOAD, 0))
        elif op.kind == "acquire" and (op.statement, block - self.buffers[op.statement]) in self.read:
            self.need(place)
        elif op.kind == "issue":
            self.groups.append((op.statement, block))
        elif op.kind in ("run", "keep"):
            self.reads(place, op, block)

    def wait(self, place: Place, load: Load) -> None:
        group = self.group(load)
        if group >= self.arrived:
            outstanding = len(self.groups) - group - 1
            # In every iteration of the steady state the same, which is enough for all of them.
            self.needed.waits[place] = min(outstanding, self.needed.waits.get(place, outstanding))
        if place in self.needed.waits:
            self.arrived = max(self.arrived, len(self.groups) - self.needed.waits[place])

    def group(self, load: Load) -> int:
        """Returns the index of a load's group, or 0 if the load was not issued, which the proof of values refuses."""
        return self.groups.index(load) if load in self.groups else 0

    def reads(self, place: Place, op: Operation, block: int) -> None:
        loads = [(load, block) for load in self.table.loads_of(op.statement)] if op.kind == "run" else []
        if op.kind == "keep" or "Q_shared" in self.table.by_name[op.statement].reads:
            loads.append((Q_LOAD, 0))
        groups = [self.group(load) for load in loads]
        if any(group >= self.arrived for group in groups):
            raise _NotWaitedFor
        if any(group >= self.shared for group in groups):
            self.need(place)
        self.read.update(loads)

    def need(self, place: Place) -> None:
        """Notes that a barrier is needed right before `place`, and replays that barrier."""
        self.needed.barriers.add(place)
        self.meet()

    def meet(self) -> None:
        self.shared = self.arrived
        self.read.clear()


PASSES = (waits_and_barriers,)
