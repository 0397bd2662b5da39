"""Barriers of a thread block as the hardware counts them, with a vector clock that tells what comes before what.

A phase ends with its last arrival, once the bytes that it expects have landed; a wait on a parity passes when the
phase of that parity is the last that ended. A clock has an entry for each agent, of its events, and for each barrier,
of its ended phases, that come before in every order. An agent's n-th arrival at a barrier, and its n-th wait, are for
phase n; that they can be for no other is what a barrier checks.
"""

from __future__ import annotations

from collections import defaultdict

from tl_attention.errors import ScheduleRefused

Clock = list[int]


class Agent:
    """Somebody who runs events: `number` is its place in a clock."""

    def __init__(self, name: str, number: int, clock_size: int):
        self.name, self.number = name, number
        self.clock: Clock = [0] * clock_size
        # Per barrier: how often it arrived, and when each of its waits passed.
        self.arrived: dict[Barrier, int] = defaultdict(int)
        self.waited: dict[Barrier, list[int]] = defaultdict(list)

    def __str__(self) -> str:
        return self.name

    @property
    def now(self) -> int:
        return self.clock[self.number]

    def after(self, clock: Clock) -> None:
        """What comes next is after everything in `clock`."""
        self.clock[:] = map(max, self.clock, clock)


class Barrier:
    """An mbarrier, or a named barrier: one that agents wait at right after they arrived.

    An empty barrier's phase -1 has ended before the start. `waiters` has how often each agent is going to wait.
    """

    def __init__(self, name: str, count: int, number: int, *, empty: bool = False, loaded: bool = False):
        self.name, self.count, self.number, self.loaded = name, count, number, loaded
        self.first = -1 if empty else 0
        self.waiters: dict[Agent, int] = defaultdict(int)
        self.ended = self.expected = self.loads = self.pending_loads = 0
        self.pending = count
        # Of this phase and of the last: what comes before its end, and the blocks that its arrivals were for.
        self.clock: Clock = []
        self.last: Clock = []
        self.blocks: set[tuple[int, ...]] = set()
        self.last_blocks: set[tuple[int, ...]] = set()

    def __str__(self) -> str:
        return self.name

    @property
    def idle(self) -> bool:
        """Whether nothing has arrived since the last phase."""
        return self.pending == self.count and not self.pending_loads

    def passes(self, agent: Agent, parity: int) -> bool:
        """Whether a wait on `parity` passes now."""
        if self.ended % 2 == parity:
            return False
        phase = self.first + len(agent.waited[self])
        if self.ended != phase + 1:
            raise ScheduleRefused(
                f"{agent} waits for phase {phase} of {self} on parity {parity}, which passes after {self.ended} phases"
            )
        if self.last:
            agent.after(self.last)
        agent.waited[self].append(agent.now)
        return True

    def arrive(self, agent: Agent, arrivals: int, blocks: tuple[int, ...] = ()) -> bool:
        """So many arrivals of an agent, all for one phase, at this barrier of each of `blocks`; whether they end it."""
        self.blocks.add(blocks)
        self.must_be_in(agent, agent.arrived[self], "arrives")
        agent.arrived[self] += 1
        if arrivals > self.pending:
            raise ScheduleRefused(
                f"{self} counts {self.count} arrivals: {agent} makes {arrivals} where phase {self.ended} has "
                f"{self.pending} left"
            )
        self.pending -= arrivals
        return self._join(agent.clock)

    def expect(self) -> None:
        """The bytes of one more load."""
        self.pending_loads += 1
        self.expected += 1

    def land(self, issued: Clock) -> None:
        """The bytes of a load that was issued at `issued`."""
        self.pending_loads -= 1
        self._join(issued)

    def must_be_in(self, agent: Agent, phase: int, does: str) -> None:
        """Refuse what an agent does for a phase if the one before may not have ended."""
        if agent.clock[self.number] < phase:
            raise ScheduleRefused(
                f"{agent} {does} for phase {phase} of {self}, which may still be in phase {phase - 1}"
            )

    def _join(self, clock: Clock) -> bool:
        """Something that counts, at `clock`; whether the phase ends with it."""
        self.clock = list(map(max, self.clock, clock)) if self.clock else clock[:]
        if self.pending or self.pending_loads:
            return False
        if self.loaded and self.expected <= self.ended:
            raise ScheduleRefused(f"phase {self.ended} of {self} can end before the bytes of its load are expected")
        for waiter, waits in self.waiters.items():
            # The wait for the phase before this one, if there is one.
            index, seen = self.ended - 1 - self.first, waiter.waited[self]
            if 0 <= index < waits and (index >= len(seen) or self.clock[waiter.number] < seen[index]):
                raise ScheduleRefused(
                    f"phase {self.ended} of {self} can end before {waiter} has seen the end of phase {self.ended - 1}"
                )
        self.ended += 1
        self.pending = self.count
        self.last, self.clock = self.clock, []
        self.last_blocks, self.blocks = self.blocks, set()
        self.last[self.number] = self.ended
        return True
