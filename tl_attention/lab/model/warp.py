"""A warp of the simulated SM: what its steps wait for, when they issue, and an account of its time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy

from tl_attention.lab.model.barrier import Meetings
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
    WarpMark,
    WarpStep,
)
from tl_attention.lab.model.tensor_core import Running, TensorCore

# What warps wait for beside barriers and products, in the words of timelines.
COPIES, THREADS = "copies", "threads"
# A warp that does not hold the issue slot gets it so much later than one that does: the scheduler is greedy.
LATER = 0.02
Until = Generator[simpy.Event, Any, float]
"""It runs until the cycle that it returns."""


class WarpNote(NamedTuple):
    """A WarpNote says from which cycle on a warp does what, in the words of a timeline, such as ("wait", "K_full")."""

    at: float
    kind: str  # An "arrive" lasts no time, and changes nothing of what the warp does.
    name: str


@dataclass
class Account:
    """An Account holds what a warp did in each cycle, how long it waited, and when it passed marks."""

    notes: list[WarpNote] = field(default_factory=list)
    marks: dict[tuple[object, ...], float] = field(default_factory=dict)  # when the warp got to each
    # The cycles of its waits and issues, by kind and name.
    waited: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def note(self, at: float, kind: str, name: str = "") -> None:
        """Notes that, from a cycle on, the warp does something of this kind and name."""
        self.notes.append(WarpNote(at, kind, name))

    def waits(self, kind: str, name: str, start: float, end: float) -> None:
        """Notes that the warp waited, or issued something, from cycle `start` to cycle `end`."""
        self.waited[f"{kind} {name}"] += end - start
        self.note(start, kind, name)
        self.note(end, "vector")


class Shared:
    """A Shared is what the warps of a quarter share: the slot that issues instructions, the pipes, the tensor core."""

    def __init__(self, machine: Machine):
        self.env, self.machine = simpy.Environment(), machine
        # The cycles of each pipe.
        self.used: defaultdict[str, float] = defaultdict(float)
        self.tensor_core = TensorCore(self.env, machine, self.used)
        self._slot: float = 0.0
        self._holder: object = None
        self._free: defaultdict[str, float] = defaultdict(float)

    def earliest(self, warp: object, pipe: str, at: float) -> float:
        """Returns when, from `at` on, a warp gets the issue slot and a pipe, as far as is known now."""
        if self._slot > at:
            at = self._slot if self._holder is warp else self._slot + LATER
        return max(at, self._free[pipe]) if pipe else at

    def take(self, warp: object, step: WarpStep, at: float) -> float:
        """Issues a warp's step, and returns when the warp may issue its next one: later beside products."""
        machine, pipe, slot, busy, stall = self.machine, step.pipe, 1.0, step.busy, float(step.stall)
        if self.tensor_core.until > at:
            slot = machine.slot_beside
            if pipe == "fma":
                self.tensor_core.take(at, step.instruction.name)
                slot = machine.fma_beside
            elif pipe == "alu":
                busy *= machine.alu_beside
            elif pipe == "mufu":
                busy *= machine.mufu_beside
            stall *= machine.stall_beside
        self._slot, self._holder = at + slot, warp
        self.used["issue slots"] += slot
        if pipe:
            self._free[pipe] = at + busy
            self.used[pipe] += busy
        return at + stall


class Warp:
    """A Warp runs steps in order, against the other warps of its quarter.

    `meet` gives the barriers that it waits and arrives at, `products` the names of the groups of products that it
    issues, in their order.
    """

    def __init__(self, name: tuple[int, int], shared: Shared, meet: Meetings, products: Iterator[str]):
        self.name, self.account = name, Account()
        self._shared, self._meet, self._products = shared, meet, products
        self._env, self._machine, self._core = shared.env, shared.machine, shared.tensor_core
        # When the next step may issue, and the next product.
        self._ready = self._next_product = shared.env.now
        # When what each scoreboard guards is there.
        self._board = [0.0] * SCOREBOARDS
        # Groups of products in flight, and when each group of copies is there.
        self._groups: deque[tuple[str, simpy.Event]] = deque()
        self._copies: deque[float] = deque()
        # The group whose products are being issued, and from when on.
        self._issuing, self._began = "", 0.0

    def run(self, steps: Iterable[WarpStep | WarpMark]) -> Running:
        """Runs the steps, and keeps the account of it."""
        for step in steps:
            if isinstance(step, WarpMark):
                self._mark(step)
                continue
            at = max([self._ready, *(self._board[n] for n in step.waits)]) if step.waits else self._ready
            if step.kind:
                at = yield from self._waited(step, at)
            while (at := self._shared.earliest(self.name, step.pipe, max(at, self._env.now))) > self._env.now:
                yield self._env.timeout(at - self._env.now)
            self._issue(step, at)

    def _mark(self, mark: WarpMark) -> None:
        self.account.marks[mark.label] = self._ready
        if len(mark.label) == 1:
            self.account.note(self._ready, "tile")
            self.account.note(self._ready, "vector")

    def _waited(self, step: WarpStep, at: float) -> Until:
        """Waits for what a step needs beside scoreboards, and returns from when on it may issue."""
        if step.kind == PRODUCT:
            return (yield from self._place_of_product(at))
        if step.kind == PRODUCTS_WAIT:
            return (yield from self._products_over(step.number, at))
        if step.kind == COPIES_WAIT:
            came = at
            while len(self._copies) > step.number:
                at = max(at, self._copies.popleft())
            self.account.waits("wait", COPIES, came, at)
        if step.kind in (WAIT, SYNC):
            return (yield from self._met(step.kind, at))
        return at

    def _place_of_product(self, at: float) -> Until:
        if not self._issuing:
            self._issuing, self._began = next(self._products), at
        at = max(at, self._next_product)
        yield from self._until(at)
        if place := self._core.enter(self.name):
            yield place
            at = max(at, self._env.now)
        return at

    def _products_over(self, left: int, at: float) -> Until:
        awaited, came = "", at
        while len(self._groups) > left:
            awaited, over = self._groups.popleft()
            if not over.processed:
                yield over
            at = max(at, float(over.value or 0) + self._machine.wgmma_done)
        if awaited:
            self.account.waits("wait", awaited, came, at)
        return at

    def _met(self, kind: str, at: float) -> Until:
        meeting, came = self._meet(kind), at
        if not meeting:
            return at
        yield from self._until(at)
        if kind == SYNC:
            meeting.barrier.arrive(self._machine.named_barrier)
        over = meeting.barrier.over(meeting.phase)
        if not over.processed:
            yield over
        at = max(at, self._env.now)
        self.account.waits("wait", meeting.name, came, at)
        return at

    def _until(self, at: float) -> Running:
        if at > self._env.now:
            yield self._env.timeout(at - self._env.now)

    def _issue(self, step: WarpStep, at: float) -> None:
        """Issues a step, and begins what goes on without the warp."""
        machine, kind = self._machine, step.kind
        self._ready = self._shared.take(self.name, step, at)
        if step.write >= 0:
            self._board[step.write] = at + (machine.mbarrier if kind == WAIT else step.latency)
        if step.read >= 0:
            self._board[step.read] = max(self._board[step.read], at + machine.read_latency)
        if kind == PRODUCT:
            self._next_product = at + step.number / machine.wgmma_issue_columns
            over = self._core.issue(self.name, at, step.number)
            if step.closes:
                self._groups.append((self._issuing, over))
                self.account.waits("issue", self._issuing, self._began, self._ready)
                self._issuing = ""
        elif kind == COMMIT:
            self._copies.append(at + machine.copy_latency)
        elif kind in (ARRIVE, SIGNAL) and (meeting := self._meet(kind)):
            meeting.barrier.arrive(machine.named_barrier)
            self.account.note(at, "arrive", meeting.name)
