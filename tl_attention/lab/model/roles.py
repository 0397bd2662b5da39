"""The roles of a kernel run on a quarter of an SM: those that the proof knows, with the barriers at which they meet."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple

from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.lab.model.barrier import Meeting, SimulatedBarrier
from tl_attention.lab.model.machine import Machine
from tl_attention.lab.model.sketch import Sketch
from tl_attention.lab.model.sm import Quarter
from tl_attention.lab.model.steps import ARRIVE, SIGNAL, SYNC, WAIT, TileCode
from tl_attention.lab.model.tensor_core import Running
from tl_attention.lab.model.warp import THREADS, Account
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.warpgroup import ROWS, WARPGROUP
from tl_attention.program.events import CLUSTER, NAMED, Event, Process
from tl_attention.program.planned import Planned

FULL, EMPTY = "_full", "_empty"
K_EMPTY = f"K{EMPTY}"
# Blocks of an SM start so many cycles after each other, so that they do not run in step.
APART = 997.0


class _Block(NamedTuple):
    """A _Block is a thread block of a kernel on a quarter, with the tiles that it works on."""

    quarter: Quarter
    planned: Planned
    code: TileCode | Sketch
    lengths: Sequence[tuple[int, int]]
    head_size: HeadSize
    number: int

    def products(self) -> Iterator[str]:
        """Yields the names of a consumer's products in order, then the last's again: branches may have more of it."""
        program = self.planned.program
        assert program is not None
        operations = (step.op for blocks, _ in self.lengths for step in program.phases.steps(blocks))
        name = ""
        for op in operations:
            if op.kind == "issue" and op.statement in program.table.products:
                yield (name := op.statement)
        yield from repeat(name)


def run(
    planned: Planned,
    code: TileCode | Sketch,
    lengths: Sequence[tuple[int, int]],
    machine: Machine,
    head_size: HeadSize,
    blocks: int = 1,
) -> Quarter:
    """Runs tiles of a kernel on a quarter, with `blocks` thread blocks on the SM, and returns the quarter.

    Each block runs tiles with so many (KV blocks, masked ones) each.
    """
    quarter = Quarter(machine)
    for block in range(blocks):
        roles = _specialized if planned.schedule.lowering == "warp_specialized" else _alike
        found = roles(_Block(quarter, planned, code, lengths, head_size, block))
        quarter.env.process(_later(quarter, block * APART, found))
    quarter.env.run()
    return quarter


def _later(quarter: Quarter, delay: float, roles: Sequence[Running]) -> Running:
    yield quarter.env.timeout(delay)
    for role in roles:
        quarter.env.process(role)


# --- kernels whose warps all do the same ------------------------------------------------------------------------


def _alike(block: _Block) -> list[Running]:
    warps = max(1, block.planned.schedule.threads // WARPGROUP)
    barrier = SimulatedBarrier(block.quarter.env, warps)
    return [
        block.quarter.warp((block.number, warp), block.code.steps(block.lengths), _Together(barrier), block.products())
        for warp in range(warps)
    ]


class _Together:
    """_Together has the meetings of a block's warps: at each barrier all of them wait for all."""

    def __init__(self, barrier: SimulatedBarrier):
        self.barrier, self.met = barrier, -1

    def __call__(self, kind: str) -> Meeting | None:
        if kind != SYNC:
            return None
        self.met += 1
        return Meeting(THREADS, self.barrier, self.met)


# --- warp-specialised kernels -------------------------------------------------------------------------------------


class _Barriers:
    """_Barriers holds those of a thread block, by the name and index that events have."""

    def __init__(self, quarter: Quarter, roles: Roles):
        self.quarter, self.roles = quarter, roles
        self._found: dict[tuple[str, int], SimulatedBarrier] = {}

    def of(self, event: Event) -> SimulatedBarrier:
        key = (event.name, event.index)
        if key not in self._found:
            self._found[key] = SimulatedBarrier(self.quarter.env, self._count(event))
        return self._found[key]

    def _count(self, event: Event) -> int:
        """Returns how many roles arrive in a phase: a warp stands for a warpgroup, and a cluster's blocks are alike."""
        if event.name == NAMED:
            return max(1, event.value // WARPGROUP)
        return 1 if event.name.endswith(FULL) or event.name == "Q_empty" else self.roles.warpgroups


def _specialized(block: _Block) -> list[Running]:
    quarter, schedule, program = block.quarter, block.planned.schedule, block.planned.program
    assert program is not None
    roles = Roles.of(schedule, program)
    barriers = _Barriers(quarter, roles)
    k, v = sizes_of(block.head_size)
    # In bytes, of 16-bit numbers.
    sizes = {"K": 2 * k * schedule.block_N, "V": 2 * v * schedule.block_N, "Q": 2 * k * ROWS}
    blocks = [length for length, _ in block.lengths]
    found: list[Running] = []
    for process in roles.processes:
        if process.block:
            continue
        if process.warpgroup < 0:
            account = quarter.producers[block.number] = Account()
            found.append(_produce(quarter, account, barriers, [*roles.events(process, blocks)], sizes, blocks))
        else:
            name, meetings = (block.number, process.warpgroup), _Meetings(barriers, process, blocks)
            found.append(quarter.warp(name, block.code.steps(block.lengths), meetings, block.products()))
    return found


class _Meetings:
    """_Meetings are those of a consumer, each kind in its order: the machine code keeps the order of each kind."""

    def __init__(self, barriers: _Barriers, process: Process, blocks: Sequence[int]):
        self._queues: dict[str, deque[Meeting | None]] = defaultdict(deque)
        times: dict[SimulatedBarrier, int] = defaultdict(int)
        began = False
        for event in barriers.roles.events(process, blocks):
            began = began or event.kind == WAIT
            if event.name == CLUSTER or event.kind not in (WAIT, SYNC, ARRIVE, SIGNAL):
                continue
            barrier = barriers.of(event)
            if not began:
                # Before its first tile a consumer gives the first turn away.
                barrier.arrive()
            elif event.kind in (WAIT, SYNC):
                self._queues[event.kind].append(Meeting(event.name, barrier, times[barrier]))
                times[barrier] += 1
            else:
                # The machine code arrives at the barriers of a cluster's blocks one after the other.
                self._queues[event.kind] += (Meeting(event.name, barrier), *(None,) * (len(event.blocks) - 1))

    def __call__(self, kind: str) -> Meeting | None:
        queue = self._queues[kind]
        return queue.popleft() if queue else None


def _produce(
    quarter: Quarter,
    account: Account,
    barriers: _Barriers,
    events: Sequence[Event],
    sizes: Mapping[str, int],
    blocks: Sequence[int],
) -> Running:
    """Runs a producer: its waits for room, and its loads, one after the other through TMA."""
    env, machine = quarter.env, quarter.machine
    times: dict[SimulatedBarrier, int] = defaultdict(int)
    free = arrives = 0.0
    # Loads of K, and how many there have been when each tile begins.
    loaded, begins = 0, {0, *accumulate(blocks)}
    for event in events:
        if event.kind == WAIT:
            barrier = barriers.of(event)
            # Rings are empty at first: the first wait for room waits for nothing.
            phase = times[barrier] - event.name.endswith(EMPTY)
            times[barrier] += 1
            if event.name == K_EMPTY:
                if loaded in begins:
                    account.note(env.now, "tile")
                loaded += 1
            account.note(env.now, "wait", event.name)
            if phase >= 0 and not (over := barrier.over(phase)).processed:
                yield over
            if event.name.endswith(EMPTY):
                account.note(env.now, "load", event.name.removesuffix(EMPTY))
            yield env.timeout(machine.producer)
        elif event.kind == "expect":
            free = max(free, env.now) + sizes[event.name.removesuffix(FULL)] / machine.tma_bytes
            arrives = free + machine.tma_latency
        elif event.kind == "take":
            arrives = env.now + machine.next_tile
        elif event.kind == ARRIVE:
            barriers.of(event).arrive(max(0.0, arrives - env.now) if event.name.endswith(FULL) else 0.0)
            account.note(env.now, "arrive", event.name)
    account.note(env.now, "tile")
