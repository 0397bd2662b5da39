"""Barriers of the simulated SM, at which warps arrive and wait for each other's arrivals."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import simpy

from tl_attention.lab.model.tensor_core import Running


class SimulatedBarrier:
    """A SimulatedBarrier has phases: the n-th is over when `count` processes have arrived for the n-th time.

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
    """A Meeting is a warp's next act at a barrier of this name: to wait, or to arrive."""

    name: str
    barrier: SimulatedBarrier
    phase: int = 0  # whose end a warp waits for


# Gives the next meeting of a kind in a warp's order; None where nobody waits for it.
Meetings = Callable[[str], Meeting | None]
