"""This module counts barriers of a thread block as the hardware does, with a clock that tells what comes before what.

A phase ends with its last arrival, once the bytes that it expects have landed; a wait on a parity passes when the phase
of that parity is the last that ended. The clock is a vector clock. It has an entry for each agent, which counts the
agent's events, and two for each barrier: one counts the phases that have ended, the other the phases whose arrivals
have all been made. A clock holds what comes before in every order. One run shows what each phase is made of; a barrier
checks that no other order makes a phase of anything else, and that no wait can find another phase than in this run.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum

from tl_attention.errors import ScheduleRefused

Clock = list[int]


class Rule(StrEnum):
    """A Rule is a way in which roles use barriers or shared memory wrongly, under a short name.

    The rules are sound, not complete: what no rule refuses runs in every order; a few safe programs are refused. The
    strict rules stay: with them what a barrier counts and what a buffer holds can be said without looking at an order.
    Where a rule refuses a little that would run as well, its comment says so under "strict".
    """

    # Of barriers.
    # Strict: the cluster's barrier does not wait for a warp that has exited, so one warp may be there more often.
    DEADLOCK = "deadlock"
    LEFT_OVER = "left over"
    # Strict: nobody may wait any more for an arrival too many, or for one that may count for another phase.
    EARLY = "early"  # an arrival, expected bytes or a load for a phase that may not have begun
    COUNT = "count"  # more arrivals than a phase counts; strict like "early"
    MISSED = "missed"  # a wait whose barrier may be a phase further by then
    BYTES = "bytes"  # a phase that can end before the bytes of its load are expected
    # Strict: a named barrier may serve other numbers of threads at other times, if never two at once.
    THREADS = "threads"  # a named barrier of so many threads, and of others
    # Of shared memory.
    NOT_SEEN = "not seen"  # a read before what it reads is there for sure
    OTHER = "other"  # a read of a buffer that holds something else
    # Strict: a load is known by its number, also where a load of the same number comes twice.
    OVERWRITE = "overwrite"  # a load, or a write, over what may still be read
    LANDING = "landing"  # a load over one that may still land
    # A write that is stored, multiplied or loaded over, without a fence and a barrier of the warpgroup; a read, too.
    PROXY = "proxy"
    # Strict: a warp of several could be elected to load, but events do not say which.
    ONE_WARP = "one warp"  # a load, or its expected bytes, by several warps
    # Of the beginning and the end.
    NOT_STARTED = "not started"
    MAY_HAVE_ENDED = "may have ended"
    IN_FLIGHT = "in flight"  # a product, a load or a store at the end


class Unsafe(ScheduleRefused):
    """Unsafe is raised for roles that could race or deadlock; `rule` says by which Rule."""

    rule: Rule


def unsafe(rule: Rule, reason: str) -> Unsafe:
    error = Unsafe(reason)
    error.rule = rule
    return error


class Agent:
    """An Agent runs events, and has a vector clock of all that comes before its next one."""

    def __init__(self, name: str, number: int, clock_size: int):
        # `number` is the agent's own entry in clocks.
        self.name, self.number = name, number
        self.clock: Clock = [0] * clock_size
        # The last of its own events that came back in another agent's clock: all warps of the agent have made it.
        self.met = 0

    def __str__(self) -> str:
        return self.name

    @property
    def now(self) -> int:
        return self.clock[self.number]

    def after(self, clock: Clock) -> None:
        """Merges `clock` into the agent's own, so that what the agent does next comes after everything in `clock`."""
        self.met = max(self.met, clock[self.number])
        self.clock[:] = map(max, self.clock, clock)


class Barrier:
    """A Barrier counts the arrivals and loads at an mbarrier, a named barrier or the cluster's, phase after phase.

    A phase takes `count` arrivals. Phase -1 has ended before the start.
    """

    def __init__(self, name: str, count: int, number: int):
        self.name, self.count = name, count
        self.number, self.made = number, number + 1
        # For each phase that ended, the clock of what comes before its end.
        self.ends: list[Clock] = []
        # The waits that passed, by the phase whose end they waited for: who, and when.
        self.waits: dict[int, list[tuple[Agent, int]]] = defaultdict(list)
        self._begin()

    def __str__(self) -> str:
        return self.name

    def _begin(self) -> None:
        """Begins a phase, for which nothing has arrived, and no load is expected, issued or landed."""
        self.pending = self.count
        # Of loads: expected, issued and landed.
        self.expected = self.issued = self.landed = 0
        self.expecting: list[tuple[Agent, int]] = []
        self.arrivals: Clock = []
        self.landings: Clock = []
        # The blocks that each of its arrivals is for.
        self.blocks: set[tuple[int, ...]] = set()

    @property
    def ended(self) -> int:
        """Returns the number of phases that have ended."""
        return len(self.ends)

    @property
    def idle(self) -> bool:
        """Returns True if no arrival and no load, expected, issued or landed, has come since the last phase ended."""
        return self.pending == self.count and self.expected == self.issued == self.landed == 0

    def passes(self, agent: Agent, parity: int) -> bool:
        """Returns True if a wait on `parity` passes now, and then orders the agent after the end of that phase.

        The phase is the first that the agent may find with that parity. Raises Unsafe if the barrier may be one
        phase further.
        """
        known = agent.clock[self.number]
        phase = known - 1 if (known - 1) % 2 == parity else known
        if self.ended <= phase:
            return False
        if self.ended > phase + 1:
            raise self._missed(agent, phase)
        if phase >= 0:
            agent.after(self.ends[phase])
        self.waits[phase].append((agent, agent.now))
        return True

    def arrive(self, agent: Agent, arrivals: int, blocks: tuple[int, ...] = ()) -> bool:
        """Counts `arrivals` of an agent for the current phase, and returns True if they end the phase.

        The agent arrives at this barrier of each of `blocks`. Raises Unsafe for more arrivals than are left,
        and if the phase before may not have ended.
        """
        self._must_be_in(agent, self.made, "arrives")
        if arrivals > self.pending:
            raise unsafe(
                Rule.COUNT,
                f"{self} counts {self.count} arrivals: {agent} makes {arrivals} where phase {self.ended} has "
                f"{self.pending} left",
            )
        self.blocks.add(blocks)
        self.pending -= arrivals
        self.arrivals = _joined(self.arrivals, agent.clock)
        return self._ends()

    def expect(self, agent: Agent, loads: int) -> None:
        """Makes the current phase wait for the bytes of `loads` more loads, which the agent expects.

        Raises Unsafe if the phase before may not have ended.
        """
        self._must_be_in(agent, self.number, "expects bytes")
        self.expecting.append((agent, agent.now))
        self.expected += loads

    def issue(self, agent: Agent, what: str) -> int:
        """Counts the issue of a load at this barrier, and returns the phase that the load counts for."""
        self._must_be_in(agent, self.number, f"loads {what}")
        self.issued += 1
        return self.ended

    def land(self, issued: Clock) -> None:
        """Counts a load's bytes as landed, which may end the phase; the load was issued at the clock `issued`."""
        self.landed += 1
        self.landings = _joined(self.landings, issued)
        self._ends()

    def _must_be_in(self, agent: Agent, entry: int, does: str) -> None:
        """Raises Unsafe unless its clock shows that the phase before has ended; `does` is for the error."""
        if agent.clock[entry] < self.ended:
            raise unsafe(
                Rule.EARLY,
                f"{agent} {does} for phase {self.ended} of {self}, which may still be in phase {self.ended - 1}",
            )

    def _missed(self, agent: Agent, phase: int) -> Unsafe:
        return unsafe(
            Rule.MISSED, f"phase {phase + 1} of {self} can end before {agent} has seen the end of phase {phase}"
        )

    def _ends(self) -> bool:
        """Ends the phase if all arrivals came and all expected loads landed, and returns True if it ended."""
        if self.pending or self.expected != self.landed:
            return False
        # An arrival has to come after the bytes are expected: all arrivals may come before any load lands.
        late = any(self.arrivals[agent.number] < time for agent, time in self.expecting)
        if late or self.issued != self.expected:
            raise unsafe(Rule.BYTES, f"phase {self.ended} of {self} can end before the bytes of its load are expected")
        clock = _joined(self.landings, self.arrivals)
        for agent, time in self.waits.pop(self.ended - 1, ()):
            if clock[agent.number] < time:
                raise self._missed(agent, self.ended - 1)
        self.ends.append(clock)
        clock[self.number] = clock[self.made] = self.ended
        self._begin()
        return True


def _joined(clock: Clock, other: Clock) -> Clock:
    return list(map(max, clock, other)) if clock else other[:]
