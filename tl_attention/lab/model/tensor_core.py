"""The tensor core of a quarter: the products that wait for it, and which warp gets the next place among them.

Microbenchmarks show the rules (`results/probes/`): wgmma instructions of all warps run one after another, in the order
of their issue, and few are issued ahead. Where two warps wait to issue, the one that began first gets more places.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator
from typing import Any

import simpy

from tl_attention.lab.model.machine import Machine

Running = Generator[simpy.Event, Any, None]
NAME = "tensor core"
# Two instructions of the FMA pipe are close to each other if they issue in less than so many cycles.
CLOSE = 4.0


class TensorCore:
    """A TensorCore multiplies for the warps of a quarter; the product that runs ends at `until`.

    It counts its cycles in `used`, under NAME.
    """

    def __init__(self, env: simpy.Environment, machine: Machine, used: dict[str, float]):
        self.env, self.machine, self.used = env, machine, used
        self.until = 0.0
        self._taken, self._last_fma = 0.0, -CLOSE
        self._products: deque[tuple[float, int, object, simpy.Event]] = deque()
        self._in_flight: defaultdict[object, int] = defaultdict(int)
        self._began: dict[object, float] = {}
        self._waiting: dict[object, simpy.Event] = {}
        self._others_due = 0.0
        self._issued = env.event()
        env.process(self._run())

    def take(self, at: float, opcode: str) -> None:
        """Lets an instruction of the FMA pipe that issues at this time take cycles from the product that runs."""
        machine, close = self.machine, at - self._last_fma < CLOSE
        self._taken += machine.taken_close if close else machine.taken_ffma if opcode == "FFMA" else machine.taken
        self._last_fma = at

    def enter(self, warp: object) -> simpy.Event | None:
        """Takes a place in the queue for a warp's next product; if none is free, returns the event of getting one."""
        if not self._in_flight[warp]:
            self._began[warp] = self.env.now
        if sum(self._in_flight.values()) < self.machine.wgmma_queue:
            self._in_flight[warp] += 1
            return None
        self._waiting[warp] = self.env.event()
        return self._waiting[warp]

    def issue(self, warp: object, at: float, columns: int) -> simpy.Event:
        """Takes a product that a warp has a place for and issues at this time; returns the event of its end."""
        over = self.env.event()
        self._products.append((at, columns, warp, over))
        if not self._issued.triggered:
            self._issued.succeed()
        return over

    def _leave(self, warp: object) -> None:
        """Gives the place of a warp's product that has ended to a warp that waits for one."""
        self._in_flight[warp] -= 1
        if not self._waiting:
            return
        order = sorted(self._waiting, key=lambda warp: self._began[warp])
        self._others_due += self.machine.wgmma_others * (len(order) > 1)
        chosen = order[0]
        if self._others_due >= 1:
            self._others_due -= 1
            chosen = order[1]
        self._in_flight[chosen] += 1
        self._waiting.pop(chosen).succeed()

    def _run(self) -> Running:
        env, machine = self.env, self.machine
        while True:
            if not self._products:
                self._issued = env.event()
                yield self._issued
            issued, columns, warp, over = self._products.popleft()
            if (start := issued + machine.wgmma_start) > env.now:
                yield env.timeout(start - env.now)
            takes = columns / machine.wgmma_columns
            self.used[NAME] += takes
            self._taken = 0.0
            while takes:
                self.until = env.now + takes
                yield env.timeout(takes)
                takes, self._taken = self._taken, 0.0
            over.succeed(env.now)
            self._leave(warp)
