"""A discrete-event simulation of one SM: warps share a quarter's issue slots and pipes, its tensor core, and barriers.

The four quarters of an SM do the same at the same time, as a warpgroup has a warp in each. So one quarter is simulated,
with a warp for each warpgroup or, for a kernel by mma.sync, for every four warps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tl_attention.lab.model.barrier import Meetings
from tl_attention.lab.model.machine import Machine
from tl_attention.lab.model.steps import WarpMark, WarpStep
from tl_attention.lab.model.tensor_core import Running
from tl_attention.lab.model.warp import Account, Shared, Warp


class Quarter(Shared):
    """A Quarter runs warps against each other."""

    def __init__(self, machine: Machine):
        super().__init__(machine)
        # Of each warp, and of the producer of each thread block.
        self.accounts: dict[tuple[int, int], Account] = {}
        self.producers: dict[int, Account] = {}

    def warp(
        self, name: tuple[int, int], steps: Iterable[WarpStep | WarpMark], meet: Meetings, products: Iterator[str]
    ) -> Running:
        """Runs a warp's steps in order, as a Warp does."""
        warp = Warp(name, self, meet, products)
        self.accounts[name] = warp.account
        yield from warp.run(steps)
