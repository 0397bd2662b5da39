"""Proves that the roles of a cluster neither race nor deadlock, in whichever order their events run.

One run decides for every order: clocks tell what comes before what whatever the order. Refused are

- an arrival, or the bytes of a load, that could count for another phase than its own;
- a wait whose barrier could be a phase further by then;
- a read of what the reader has not waited for, and a load that could come before all who read what it overwrites have
  read it;
- a reach into another block of the cluster that may not have started, or may have ended.

Where none of this can happen a wait passes for the same phase in every order, so all of them get equally far: one
deadlocks only if all do. The arrivals of one release at the blocks of a cluster count as one moment. Where they come
apart, a later arrival of another warp may count in the place of the one that is late, which only delays a wait.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from tl_attention.errors import ScheduleRefused
from tl_attention.hardware.warpgroup import WARP
from tl_attention.proof.events import CLUSTER, Event, Process, Read
from tl_attention.proof.mbarrier import Agent, Barrier, Clock


def prove(
    roles: Mapping[Process, Sequence[Event]], counts: Mapping[str, int], *, reverse: bool = False, late: bool = False
) -> None:
    """Raise ScheduleRefused, in one line, where the roles of one cluster could race or deadlock.

    `counts` has the arrivals that each mbarrier waits for. `reverse` runs the roles from the last one, `late` has a
    load land only when nothing else can go on: the verdict is the same.
    """
    run = _Proof(roles, counts, late)
    agents = run.agents[::-1] if reverse else run.agents
    # A list: every role advances, not only the first that can.
    while any([run.advance(agent) for agent in agents]) or run.land():  # noqa: C419
        pass
    run.check_the_end()


class _Buffer:
    """Load number `step` in shared memory; `ends` has when each agent was done with it, None while it reads."""

    def __init__(self, step: int, phase: int):
        self.step, self.phase = step, phase
        self.ends: dict[Agent, int | None] = {}


class _Role(Agent):
    """A process at work: the events that are left, the products in flight."""

    def __init__(self, process: Process, events: Sequence[Event], number: int, clock_size: int):
        super().__init__(str(process), number, clock_size)
        self.process, self.events = process, deque(events)
        self.products: deque[list[_Buffer]] = deque()
        self.in_sync = self.reached_out = False


class _Proof:
    def __init__(self, roles: Mapping[Process, Sequence[Event]], counts: Mapping[str, int], late: bool):
        self.counts, self.late = counts, late
        events = [(process.block, event) for process, run in roles.items() for event in run]
        self.loaded = {(block, f"{e.name}_full", e.index) for _, e in events if e.kind == "load" for block in e.blocks}
        places = {(e.name, e.index) for _, e in events}
        size = len(roles) + len({block for block, _ in events}) * 2 * len(places)
        self.agents = [_Role(process, run, number, size) for number, (process, run) in enumerate(roles.items())]
        self.threads = sum(process.warps for process in roles) * WARP
        self.barriers: dict[tuple[int, str, int], Barrier] = {}
        self.buffers: dict[tuple[int, str, int], _Buffer] = {}
        self.in_flight: deque[tuple[Barrier, Clock]] = deque()
        self.readers: dict[tuple[int, Read], dict[Agent, None]] = defaultdict(dict)
        for agent in self.agents:
            for event in agent.events:
                for read in event.reads:
                    self.readers[agent.process.block, read][agent] = None
                if event.kind == "wait":
                    self._barrier(agent.process.block, event).waiters[agent] += 1
        self.steps: dict[str, Callable[[_Role, Event], bool | None]] = {
            "wait": self._wait,
            "arrive": self._arrive,
            "expect": self._expect,
            "sync": self._sync,
            "signal": self._signal,
            "load": self._load,
            "take": self._load,
            "read": self._read,
            "write": self._read,
            "store": self._read,
            "product": self._issue,
            "products wait": self._products_wait,
            "fence": self._nothing,
            "stored": self._nothing,
            "hold": self._nothing,
            "hold last": self._nothing,
            "resume": self._nothing,
        }

    def advance(self, agent: _Role) -> bool:
        """Run a role until it blocks; whether it got anywhere."""
        left = len(agent.events)
        while agent.events:
            agent.clock[agent.number] += 1
            event = agent.events[0]
            if self.steps[event.kind](agent, event) is False:
                break
            agent.events.popleft()
        return len(agent.events) < left

    def land(self) -> bool:
        """The last load in flight lands; whether there was one."""
        if self.in_flight:
            barrier, issued = self.in_flight.pop()
            barrier.land(issued)
            return True
        return False

    def check_the_end(self) -> None:
        blocked = [
            f"{agent} waits for {self._barrier(agent.process.block, agent.events[0])}"
            for agent in self.agents
            if agent.events
        ]
        if blocked:
            raise ScheduleRefused(f"deadlock: {', '.join(blocked)}")
        for barrier in self.barriers.values():
            if not barrier.idle:
                raise ScheduleRefused(f"left over: {barrier} waits for {barrier.pending} of {barrier.count} arrivals")
        for agent in self.agents:
            if agent.reached_out:
                raise ScheduleRefused(f"{agent} reaches another block, which may have ended")

    # --- barriers ----------------------------------------------------------------------------------------------

    def _barrier(self, block: int, event: Event) -> Barrier:
        """The barrier that an event names, in a block."""
        return self._barrier_at(block, event.name, event.index, event.value)

    def _barrier_at(self, block: int, name: str, index: int, threads: int = 0) -> Barrier:
        key = (block if name != CLUSTER else -1, name, index)
        if key not in self.barriers:
            count = self.threads if name == CLUSTER else self.counts.get(name, threads)
            self.barriers[key] = Barrier(
                f"{name}[{index}] of block {block}" if name != CLUSTER else "the cluster",
                count,
                len(self.agents) + len(self.barriers),
                empty=name.endswith("_empty"),
                loaded=key in self.loaded,
            )
        return self.barriers[key]

    def _wait(self, agent: _Role, event: Event) -> bool:
        return self._barrier(agent.process.block, event).passes(agent, event.value)

    def _arrive(self, agent: _Role, event: Event) -> None:
        ended = []
        for block in event.blocks:
            self._reach(agent, block)
            barrier = self._barrier(block, event)
            ends = barrier.arrive(agent, event.value * agent.process.warps, event.blocks)
            if ends and barrier.last_blocks == {event.blocks}:
                ended.append(barrier)
        # One moment, in every order, as all their arrivals are the same: who sees one phase end knows of the others.
        for barrier in ended:
            for other in ended:
                barrier.last[other.number] = other.ended

    def _expect(self, agent: _Role, event: Event) -> None:
        self._barrier(agent.process.block, event).expect()

    def _signal(self, agent: _Role, event: Event) -> None:
        self._barrier(agent.process.block, event).arrive(agent, WARP * agent.process.warps)

    def _sync(self, agent: _Role, event: Event) -> bool:
        barrier = self._barrier(agent.process.block, event)
        if not agent.in_sync:
            self._signal(agent, event)
            agent.in_sync = True
        if barrier.ended < agent.arrived[barrier]:
            return False
        agent.after(barrier.last)
        agent.in_sync = False
        agent.reached_out &= event.name != CLUSTER
        return True

    def _reach(self, agent: _Role, block: int) -> None:
        if block != agent.process.block:
            if not agent.clock[self._barrier_at(block, CLUSTER, 0).number]:
                raise ScheduleRefused(f"{agent} reaches block {block}, which may not have started")
            agent.reached_out = True

    # --- shared memory -----------------------------------------------------------------------------------------

    def _load(self, agent: _Role, event: Event) -> None:
        what = f"{event.name}({event.step})"
        for block in event.blocks:
            self._reach(agent, block)
            place = (block, event.name, event.index)
            if old := self.buffers.get(place):
                for reader in self.readers[block, (*place[1:], old.step)]:
                    end = old.ends.get(reader)
                    if end is None or agent.clock[reader.number] < end:
                        over = f"{event.name}({old.step}), which {reader} may still have to read"
                        raise ScheduleRefused(f"{agent} loads {what} over {over}")
            if not self.readers[block, (*place[1:], event.step)]:
                raise ScheduleRefused(f"{agent} loads {what}, which nobody of block {block} reads")
            barrier = self._barrier_at(block, f"{event.name}_full", event.index)
            barrier.must_be_in(agent, barrier.loads, f"loads {what}")
            self.buffers[place] = _Buffer(event.step, barrier.loads)
            barrier.loads += 1
            if event.kind == "load":
                self.in_flight.append((barrier, agent.clock[:]))
        while not self.late and self.land():
            pass

    def _found(self, agent: _Role, read: Read) -> _Buffer:
        name, index, step = read
        buffer = self.buffers.get((agent.process.block, name, index))
        if buffer is None or buffer.step != step:
            holds = f"{name}({buffer.step})" if buffer else "nothing"
            raise ScheduleRefused(f"{agent} reads {name}({step}) in a buffer that holds {holds}")
        if len(agent.waited[self._barrier_at(agent.process.block, f"{name}_full", index)]) <= buffer.phase:
            raise ScheduleRefused(f"{agent} reads {name}({step}) and has not waited for it")
        return buffer

    def _read(self, agent: _Role, event: Event) -> None:
        for read in event.reads:
            buffer = self._found(agent, read)
            if event.kind == "write" and any(buffer in product for product in agent.products):
                raise ScheduleRefused(f"{agent} writes over {event.name}, which a product in flight reads")
            buffer.ends[agent] = agent.now

    def _issue(self, agent: _Role, event: Event) -> None:
        product = [self._found(agent, read) for read in event.reads]
        agent.products.append(product)
        for buffer in product:
            buffer.ends[agent] = None

    def _products_wait(self, agent: _Role, event: Event) -> None:
        while len(agent.products) > event.value:
            for buffer in agent.products.popleft():
                if not any(buffer in product for product in agent.products):
                    buffer.ends[agent] = agent.now

    def _nothing(self, agent: _Role, event: Event) -> None:
        """Orders a role's own accesses, which are in order here."""
