"""This module proves that the roles of a cluster neither race nor deadlock, in whichever order their events run.

One run decides for every order: clocks tell what comes before what whatever the order. The proof refuses

- an arrival, expected bytes or a load that could count for another phase than in this run;
- a wait whose barrier could be a phase further by then;
- a read of what may not be there yet, or of something else; a load or a write over what may still be read;
- a load by TMA over what threads have read themselves and not fenced after;
- a store, or a product, of what its warpgroup has not written, fenced and met after; a store that reads on when its
  buffer is released;
- a reach into another block of the cluster that may not have started, or may have ended;
- what is in flight at the end: products, stores, and loads that nobody has seen land.

Where none of this can happen a wait passes for the same phase in every order, so all orders get equally far: one order
deadlocks only if all do. The warps of a process run apart: what one warp reads, writes or stores concerns the others
only after a barrier that all warps have been at. The arrivals of one release at the blocks of a cluster count as one
moment. Where the arrivals come apart, a later arrival of another warp may count in the place of the late one: then all
arrivals of the phase have been made, which is what the phase's end tells. But only who waits for a phase knows that
the phase has ended.

`mbarrier.py` names the rules. Some rules refuse more than can fail: see there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from tl_attention.problem.warpgroup import WARP
from tl_attention.program.events import CLUSTER, Event, Process, Read
from tl_attention.program.mbarrier import Barrier, Clock, Rule, unsafe
from tl_attention.program.shared_memory import Buffer, Role

Key = tuple[int, str, int]
THE_CLUSTER: Key = (-1, CLUSTER, 0)


def prove(
    roles: Mapping[Process, Sequence[Event]], counts: Mapping[str, int], *, reverse: bool = False, late: bool = False
) -> None:
    """Raises Unsafe, with a message of one line, where the roles of one cluster could race or deadlock.

    `counts` has the arrivals that each mbarrier waits for. `reverse` runs the roles from the last one, `late` has a
    load land only when nothing else can go on: whether `prove` raises does not depend on either.
    """
    run = _Proof(roles, counts, late)
    agents = run.agents[::-1] if reverse else run.agents
    # A list: every role advances, not only the first that can.
    while any([run.advance(agent) for agent in agents]) or run.land():  # noqa: C419
        pass
    run.check_the_end()


class _Proof:
    def __init__(self, roles: Mapping[Process, Sequence[Event]], counts: Mapping[str, int], late: bool):
        self.late = late
        self.blocks = {process.block for process in roles}
        threads = sum(process.warps for process in roles) * WARP
        numbered = _barrier_counts(roles, {**counts, CLUSTER: threads})
        self.barriers = {
            key: Barrier(_name(key), count, len(roles) + 2 * number)
            for number, (key, count) in enumerate(numbered.items())
        }
        size = len(roles) + 2 * len(numbered)
        self.agents = [Role(process, run, number, size) for number, (process, run) in enumerate(roles.items())]
        self.buffers: dict[Key, Buffer] = {}
        self.in_flight: deque[tuple[Barrier, Clock]] = deque()
        self.loads: list[tuple[str, int, Barrier, int]] = []
        # Who reads a load, in a block.
        self.readers: dict[tuple[int, Read], dict[Role, None]] = defaultdict(dict)
        for agent in self.agents:
            for event in agent.events:
                for read in event.reads:
                    self.readers[agent.process.block, read][agent] = None
        self.steps: dict[str, Callable[[Role, Event], bool | None]] = {
            "wait": lambda agent, event: self._barrier(agent, event).passes(agent, event.value),
            "arrive": self._arrive,
            "expect": self._expect,
            "sync": self._sync,
            "signal": self._signal,
            "load": self._load,
            "take": self._take,
            "read": lambda agent, event: agent.read(self._found(agent, event)),
            "write": self._write,
            "put": self._put,
            "fence": lambda agent, event: agent.fence(),
            "store": lambda agent, event: agent.store(self._found(agent, event)),
            "stored": lambda agent, event: agent.stored(event.value),
            "product": lambda agent, event: agent.issue(self._found(agent, event)),
            "products wait": lambda agent, event: agent.products_wait(event.value),
            **dict.fromkeys(("hold", "hold last", "resume"), lambda agent, event: None),
        }

    def advance(self, agent: Role) -> bool:
        """Runs a role's events until one must wait, and returns True if any of them ran."""
        left = len(agent.events)
        while agent.events:
            agent.clock[agent.number] += 1
            event = agent.events[0]
            if self.steps[event.kind](agent, event) is False:
                break
            agent.events.popleft()
        return len(agent.events) < left

    def land(self) -> bool:
        """Lands the load in flight that was issued last, at its barrier; returns False if there is none."""
        if self.in_flight:
            barrier, issued = self.in_flight.pop()
            barrier.land(issued)
            return True
        return False

    def check_the_end(self) -> None:
        blocked = [
            f"{agent} waits for {self._barrier(agent, agent.events[0])}" for agent in self.agents if agent.events
        ]
        if blocked:
            raise unsafe(Rule.DEADLOCK, f"deadlock: {', '.join(blocked)}")
        for barrier in self.barriers.values():
            if not barrier.idle:
                raise unsafe(
                    Rule.LEFT_OVER, f"left over: {barrier} waits for {barrier.pending} of {barrier.count} arrivals"
                )
        for agent in self.agents:
            agent.check_the_end()
        for what, block, barrier, phase in self.loads:
            if not any(agent.process.block == block and agent.clock[barrier.number] > phase for agent in self.agents):
                raise unsafe(
                    Rule.IN_FLIGHT, f"{what} may land after the end of block {block}: nobody there waits for it"
                )

    # --- barriers ----------------------------------------------------------------------------------------------

    def _barrier(self, agent: Role, event: Event) -> Barrier:
        """Returns the barrier that an event names, in the agent's block."""
        return self.barriers[_key(agent.process.block, event.name, event.index)]

    def _arrive(self, agent: Role, event: Event) -> None:
        ended = []
        for block in event.blocks:
            self._reach(agent, block)
            barrier = self.barriers[_key(block, event.name, event.index)]
            alike = barrier.blocks <= {event.blocks}
            if barrier.arrive(agent, event.value * agent.process.warps, event.blocks) and alike:
                ended.append(barrier)
        # All their arrivals are the same, so the phases end in one moment, in every order: who sees one knows of all.
        for barrier in ended:
            for other in ended:
                barrier.ends[-1][other.made] = other.ended

    def _expect(self, agent: Role, event: Event) -> None:
        agent.must_be_one_warp(f"expects bytes of {event.name}")
        self._barrier(agent, event).expect(agent, event.value)

    def _signal(self, agent: Role, event: Event) -> None:
        self._barrier(agent, event).arrive(agent, WARP * agent.process.warps)

    def _sync(self, agent: Role, event: Event) -> bool:
        barrier = self._barrier(agent, event)
        if agent.meeting is None:
            agent.meeting = barrier.ended
            self._signal(agent, event)
        if barrier.ended <= agent.meeting:
            return False
        agent.after(barrier.ends[agent.meeting])
        agent.meeting = None
        agent.reached_out &= event.name != CLUSTER
        return True

    def _reach(self, agent: Role, block: int) -> None:
        if block != agent.process.block:
            together = self.barriers.get(THE_CLUSTER)
            if block not in self.blocks or not together or not agent.clock[together.number]:
                raise unsafe(Rule.NOT_STARTED, f"{agent} reaches block {block}, which may not have started")
            agent.reached_out = True

    # --- shared memory -----------------------------------------------------------------------------------------

    def _load(self, agent: Role, event: Event) -> None:
        what = f"{event.name}({event.step})"
        for block in event.blocks:
            self._make_room(agent, event, block)
            barrier = self.barriers[block, f"{event.name}_full", event.index]
            phase = barrier.issue(agent, what)
            self.buffers[block, event.name, event.index] = Buffer(event.step, barrier.number, phase + 1, by_tma=True)
            self.loads.append((what, block, barrier, phase))
            self.in_flight.append((barrier, agent.clock[:]))
        while not self.late and self.land():
            pass

    def _take(self, agent: Role, event: Event) -> None:
        for block in event.blocks:
            self._make_room(agent, event, block)
            self.buffers[block, event.name, event.index] = Buffer(event.step, agent.number, agent.now)

    def _make_room(self, agent: Role, event: Event, block: int) -> None:
        """Raises Unsafe if a load to `block` goes over what may still be read or land, or has no fence."""
        what = f"{event.name}({event.step})"
        agent.must_be_one_warp(f"loads {what}")
        self._reach(agent, block)
        old = self.buffers.get((block, event.name, event.index))
        if old is None:
            return
        over = f"{agent} loads {what} over {event.name}({old.step})"
        for reader in self.readers[block, (event.name, event.index, old.step)]:
            if not old.done(reader, agent):
                raise unsafe(Rule.OVERWRITE, f"{over}, which {reader} may still have to read")
            if reader in old.unfenced:
                raise unsafe(Rule.PROXY, f"{over}, which {reader} has read without a fence")
        if not old.seen(agent):
            raise unsafe(Rule.LANDING, f"{over}, which may not have landed")
        if old.writer and not old.fenced:
            raise unsafe(Rule.PROXY, f"{over}, which {old.writer} has written without a fence")

    def _write(self, agent: Role, event: Event) -> None:
        for read, buffer in zip(event.reads, self._found(agent, event)):
            for reader in self.readers[agent.process.block, read]:
                if reader is not agent and not buffer.done(reader, agent):
                    raise unsafe(
                        Rule.OVERWRITE, f"{agent} writes over {event.name}, which {reader} may still have to read"
                    )
            agent.write(buffer, event.name)

    def _put(self, agent: Role, event: Event) -> None:
        key = (agent.process.block, event.name, event.index)
        old = self.buffers.get(key)
        if old is not None:
            over = f"{agent} writes {event.name}({event.step}) over {event.name}({old.step})"
            if old.writer is not agent:
                raise unsafe(Rule.OVERWRITE, f"{over}, which {old.writer} has written")
            for reader in self.readers[agent.process.block, (event.name, event.index, old.step)]:
                if not old.done(reader, agent):
                    raise unsafe(Rule.OVERWRITE, f"{over}, which {reader} may still have to read")
        if old is None or old.step != event.step:
            self.buffers[key] = Buffer(event.step, agent.number, agent.now, computed=True)
        agent.put(self.buffers[key])

    def _found(self, agent: Role, event: Event) -> list[Buffer]:
        """Returns the buffers that an event reads; raises Unsafe if one holds another load, or maybe none yet."""
        return [self._one_found(agent, *read) for read in event.reads]

    def _one_found(self, agent: Role, name: str, index: int, step: int) -> Buffer:
        buffer = self.buffers.get((agent.process.block, name, index))
        if buffer is None or buffer.step != step:
            holds = f"{name}({buffer.step})" if buffer else "nothing"
            raise unsafe(Rule.OTHER, f"{agent} reads {name}({step}) in a buffer that holds {holds}")
        if not buffer.seen(agent):
            raise unsafe(Rule.NOT_SEEN, f"{agent} reads {name}({step}) and has not waited for it")
        return buffer


def _key(block: int, name: str, index: int) -> Key:
    return THE_CLUSTER if name == CLUSTER else (block, name, index)


def _name(key: Key) -> str:
    return "the cluster" if key == THE_CLUSTER else f"{key[1]}[{key[2]}] of block {key[0]}"


def _barrier_counts(roles: Mapping[Process, Sequence[Event]], counts: Mapping[str, int]) -> dict[Key, int]:
    """Returns, by barrier, how many arrivals it waits for; raises Unsafe where roles differ on the number."""
    totals: dict[Key, int] = {}
    for process, run in roles.items():
        for event in run:
            for key in _barriers(process.block, event):
                count = counts.get(key[1], event.value)
                if totals.setdefault(key, count) != count:
                    raise unsafe(Rule.THREADS, f"{process} meets {count} threads at {_name(key)}, others {totals[key]}")
    return totals


def _barriers(block: int, event: Event) -> Iterator[Key]:
    """Yields (block, name, index) of each barrier that an event of a block loads to, arrives at or waits at."""
    if event.kind == "load":
        yield from ((into, f"{event.name}_full", event.index) for into in event.blocks)
    elif event.kind == "arrive":
        yield from (_key(into, event.name, event.index) for into in event.blocks)
    elif event.kind in ("wait", "expect", "sync", "signal"):
        yield _key(block, event.name, event.index)
