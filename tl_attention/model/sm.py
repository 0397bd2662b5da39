"""A discrete-event simulation of one SM: warps share a quarter's issue slots and pipes, its tensor core, and barriers.

The four quarters of an SM do the same at the same time, as a warpgroup has a warp in each. So one quarter is simulated, with
a warp for each warpgroup or, for a kernel by mma.sync, for every four warps.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy

from tl_attention.model.instructions import SCOREBOARDS
from tl_attention.model.machine import Machine
from tl_attention.model.steps import ARRIVE, COMMIT, COPIES_WAIT, PRODUCT, PRODUCTS_WAIT, SIGNAL, SYNC, WAIT, Mark, Step

Running = Generator[simpy.Event, Any, None]
# A warp that does not hold the issue slot gets it so much later than one that does: the scheduler is greedy.
LATER = 0.02


class Barrier:
    """A Barrier has phases: the n-th is over when `count` processes have arrived for the n-th time.

    One class serves mbarriers and named barriers. For a warpgroup one warp arrives.
    """

    def __init__(self, env: simpy.Environment, count: int):
        self.env, self.count, self.arrived = env, count, 0
        self._over: list[simpy.Event] = []

    def over(self, phase: int) -> simpy.Event:
        """Returns the event of a phase's end."""
        while len(self._over) <= phase:
            self._over.append(self.env.event())
        return self._over[phase]

    def arrive(self, delay: float = 0.0) -> None:
        """Counts an arrival, which those who wait see `delay` cycles later."""
        self.arrived += 1
        if self.arrived % self.count == 0:
            over = self.over(self.arrived // self.count - 1)
            self.env.process(self._end(over, delay))

    def _end(self, over: simpy.Event, delay: float) -> Running:
        yield self.env.timeout(delay)
        over.succeed()


class Meeting(NamedTuple):
    """A Meeting is a warp's next act at a barrier: to wait for the end of `phase`, or to arrive. `label` says what for."""

    label: str
    barrier: Barrier
    phase: int = 0


# Gives the next meeting of a kind in a warp's order; None where nobody waits for it.
Meetings = Callable[[str], Meeting | None]


@dataclass
class Account:
    """An Account is what a warp did: when it got to each mark, and the cycles that it waited, by what for."""

    marks: dict[tuple[object, ...], float] = field(default_factory=dict)
    waited: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Quarter:
    """A Quarter runs warps against each other. `accounts` has an Account for each, `used` the cycles of each pipe."""

    def __init__(self, machine: Machine):
        self.env = simpy.Environment()
        self.machine = machine
        self.accounts: dict[object, Account] = {}
        self.used: defaultdict[str, float] = defaultdict(float)
        self._slot: float = 0.0
        self._holder: object = None
        self._free: defaultdict[str, float] = defaultdict(float)
        self._products: dict[object, deque[tuple[float, int, simpy.Event]]] = {}
        self._multiplies_until = self._taken = 0.0
        self._issued = self.env.event()
        self.env.process(self._tensor_core())

    def _tensor_core(self) -> Running:
        """Multiplies the warps' products in the order in which they were issued."""
        while True:
            waiting = [queue for queue in self._products.values() if queue]
            if not waiting:
                self._issued = self.env.event()
                yield self._issued
                continue
            issued, columns, over = min(waiting, key=lambda queue: queue[0][0]).popleft()
            start = issued + self.machine.wgmma_start
            if start > self.env.now:
                yield self.env.timeout(start - self.env.now)
            busy = columns / self.machine.wgmma_columns
            self._multiplies_until = self.env.now + busy
            self.used["tensor core"] += busy
            self._taken = 0.0
            yield self.env.timeout(busy)
            while self._taken:
                more, self._taken = self._taken, 0.0
                self._multiplies_until = self.env.now + more
                yield self.env.timeout(more)
            over.succeed(self.env.now)

    def warp(self, name: object, steps: Iterable[Step | Mark], meet: Meetings) -> Running:
        """Runs a warp's steps in order. `meet` gives the barriers that they wait and arrive at."""
        env, machine, free, used = self.env, self.machine, self._free, self.used
        account = self.accounts[name] = Account()
        waited = account.waited
        mine = self._products[name] = deque()
        board = [0.0] * SCOREBOARDS
        groups: deque[simpy.Event] = deque()
        copies: deque[float] = deque()
        ready = next_product = env.now
        for step in steps:
            if type(step) is Mark:
                account.marks[step.label] = ready
                continue
            kind, _, pipe, busy, latency, stall, waits, write, read, number, closes = step  # type: ignore[misc]
            at = ready
            for n in waits:
                if board[n] > at:
                    at = board[n]
            if kind:
                came = at
                if kind == PRODUCT:
                    at = max(at, next_product)
                    while len(mine) >= machine.wgmma_queue:
                        yield env.timeout(8)
                    at = max(at, env.now)
                elif kind == PRODUCTS_WAIT:
                    while len(groups) > number:
                        over = groups.popleft()
                        if not over.processed:
                            yield over
                        at = max(at, float(over.value or 0) + machine.wgmma_done)
                    waited["products"] += at - came
                elif kind == COPIES_WAIT:
                    while len(copies) > number:
                        at = max(at, copies.popleft())
                    waited["copies"] += at - came
                elif kind in (WAIT, SYNC) and (meeting := meet(kind)):
                    if at > env.now:
                        yield env.timeout(at - env.now)
                    if kind == SYNC:
                        meeting.barrier.arrive(machine.named_barrier)
                    over = meeting.barrier.over(meeting.phase)
                    if not over.processed:
                        yield over
                    at = max(at, env.now)
                    waited[meeting.label] += at - came
            while True:
                now = env.now
                if at < now:
                    at = now
                if self._slot > at:
                    at = self._slot if self._holder is name else self._slot + LATER
                if pipe and free[pipe] > at:
                    at = free[pipe]
                if at <= now:
                    break
                yield env.timeout(at - now)
            slot = 1.0
            if self._multiplies_until > at:
                slot = machine.slot_beside
                if pipe == "fma":
                    self._taken += machine.taken
                    slot = machine.fma_beside
                elif pipe == "alu":
                    busy *= machine.alu_beside
                elif pipe == "mufu":
                    busy *= machine.mufu_beside
                stall *= machine.stall_beside
            self._slot, self._holder = at + slot, name
            used["issue slots"] += slot
            if pipe:
                free[pipe] = at + busy
                used[pipe] += busy
            if write >= 0:
                board[write] = at + (machine.mbarrier if kind == WAIT else latency)
            if read >= 0:
                board[read] = max(board[read], at + machine.read_latency)
            ready = at + stall
            if kind == PRODUCT:
                next_product = at + number / machine.wgmma_issue_columns
                over = env.event()
                mine.append((at, number, over))
                if closes:
                    groups.append(over)
                if not self._issued.triggered:
                    self._issued.succeed()
            elif kind == COMMIT:
                copies.append(at + machine.copy_latency)
            elif kind in (ARRIVE, SIGNAL) and (meeting := meet(kind)):
                meeting.barrier.arrive(machine.named_barrier)
