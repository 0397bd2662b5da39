"""A discrete-event simulation of one SM: warps share a quarter's issue slots and pipes, its tensor core, and barriers.

The four quarters of an SM do the same at the same time, as a warpgroup has a warp in each. So one quarter is simulated, with
a warp for each warpgroup or, for a kernel by mma.sync, for every four warps.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy

from tl_attention.lab.model.instructions import SCOREBOARDS
from tl_attention.lab.model.machine import Machine
from tl_attention.lab.model.steps import (
    ARRIVE,
    COMMIT,
    COPIES_WAIT,
    PRODUCT,
    PRODUCTS_WAIT,
    SIGNAL,
    SYNC,
    WAIT,
    Mark,
    Step,
)
from tl_attention.lab.model.tensor_core import Running, TensorCore

# What warps wait for beside barriers and products, in the words of timelines.
COPIES, THREADS = "copies", "threads"
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
    """A Meeting is a warp's next act at a barrier of this name: to wait for the end of `phase`, or to arrive."""

    name: str
    barrier: Barrier
    phase: int = 0


# Gives the next meeting of a kind in a warp's order; None where nobody waits for it.
Meetings = Callable[[str], Meeting | None]


class Note(NamedTuple):
    """A Note says that from cycle `at` on a warp does what `kind` and `name` say, such as ("wait", "K_full").

    They are the words of a timeline. An "arrive" lasts no time, and changes nothing of what the warp does.
    """

    at: float
    kind: str
    name: str


@dataclass
class Account:
    """An Account is what a warp did: its notes, and when it got to each mark.

    `waited` has the cycles of its waits and issues, by kind and name.
    """

    notes: list[Note] = field(default_factory=list)
    marks: dict[tuple[object, ...], float] = field(default_factory=dict)
    waited: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def note(self, at: float, kind: str, name: str = "") -> None:
        """Notes what the warp does from a cycle on."""
        self.notes.append(Note(at, kind, name))

    def waits(self, kind: str, name: str, start: float, end: float) -> None:
        """Notes a wait or an issue from `start` to `end`."""
        self.waited[f"{kind} {name}"] += end - start
        self.note(start, kind, name)
        self.note(end, "vector")


class Quarter:
    """A Quarter runs warps against each other.

    `accounts` has an Account for each of them, `producers` one for the producer of each thread block, and `used` the cycles
    of each pipe.
    """

    def __init__(self, machine: Machine):
        self.env = simpy.Environment()
        self.machine = machine
        self.accounts: dict[tuple[int, int], Account] = {}
        self.producers: dict[int, Account] = {}
        self.used: defaultdict[str, float] = defaultdict(float)
        self._slot: float = 0.0
        self._holder: object = None
        self._free: defaultdict[str, float] = defaultdict(float)
        self.tensor_core = TensorCore(self.env, machine, self.used)

    def warp(
        self, name: tuple[int, int], steps: Iterable[Step | Mark], meet: Meetings, products: Iterator[str]
    ) -> Running:
        """Runs a warp's steps in order. `meet` gives the barriers that they wait and arrive at.

        `products` names the groups of products that the warp issues, in their order.
        """
        env, machine, free, used, core = self.env, self.machine, self._free, self.used, self.tensor_core
        account = self.accounts[name] = Account()
        board = [0.0] * SCOREBOARDS
        groups: deque[tuple[str, simpy.Event]] = deque()
        copies: deque[float] = deque()
        ready = next_product = env.now
        issuing, began = "", 0.0
        for step in steps:
            if type(step) is Mark:
                account.marks[step.label] = ready
                if len(step.label) == 1:
                    account.note(ready, "tile")
                    account.note(ready, "vector")
                continue
            kind, instruction, pipe, busy, latency, stall, waits, write, read, number, closes = step  # type: ignore[misc]
            at = ready
            for n in waits:
                if board[n] > at:
                    at = board[n]
            if kind:
                came = at
                if kind == PRODUCT:
                    if not issuing:
                        issuing, began = next(products), at
                    at = max(at, next_product)
                    if at > env.now:
                        yield env.timeout(at - env.now)
                    if place := core.enter(name):
                        yield place
                        at = max(at, env.now)
                elif kind == PRODUCTS_WAIT:
                    awaited = ""
                    while len(groups) > number:
                        awaited, over = groups.popleft()
                        if not over.processed:
                            yield over
                        at = max(at, float(over.value or 0) + machine.wgmma_done)
                    if awaited:
                        account.waits("wait", awaited, came, at)
                elif kind == COPIES_WAIT:
                    while len(copies) > number:
                        at = max(at, copies.popleft())
                    account.waits("wait", COPIES, came, at)
                elif kind in (WAIT, SYNC) and (meeting := meet(kind)):
                    if at > env.now:
                        yield env.timeout(at - env.now)
                    if kind == SYNC:
                        meeting.barrier.arrive(machine.named_barrier)
                    over = meeting.barrier.over(meeting.phase)
                    if not over.processed:
                        yield over
                    at = max(at, env.now)
                    account.waits("wait", meeting.name, came, at)
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
            if core.until > at:
                slot = machine.slot_beside
                if pipe == "fma":
                    core.take(at, instruction.name)
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
                over = core.issue(name, at, number)
                if closes:
                    groups.append((issuing, over))
                    account.waits("issue", issuing, began, ready)
                    issuing = ""
            elif kind == COMMIT:
                copies.append(at + machine.copy_latency)
            elif kind in (ARRIVE, SIGNAL) and (meeting := meet(kind)):
                meeting.barrier.arrive(machine.named_barrier)
                account.note(at, "arrive", meeting.name)
