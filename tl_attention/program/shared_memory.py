"""This module tracks what each buffer of shared memory holds, and who may still read or write it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tl_attention.program.events import Event, Process
from tl_attention.program.mbarrier import Agent, Rule, unsafe


class Buffer:
    """A Buffer tracks which load, number `step`, is in a buffer of shared memory, and when agents read and wrote it."""

    def __init__(self, step: int, entry: int, least: int, *, by_tma: bool = False, computed: bool = False):
        # An agent sees the load once `entry` of the agent's clock is at least `least`.
        self.step, self.entry, self.least = step, entry, least
        # The load came by TMA, or by threads; if `computed`, by the threads of its writer.
        self.by_tma, self.computed = by_tma, computed
        # When each agent has last read the buffer, None while something in flight reads it.
        self.reads: dict[Agent, int | None] = {}
        # Who has written into the buffer, when last, and whether the writer's threads have fenced that. A fence is part
        # of the writing.
        self.writer: Agent | None = None
        self.written, self.fenced = 0, False
        # Roles whose threads have read the buffer themselves, and not fenced that: a fence ends the reading.
        self.unfenced: set[Agent] = set()

    def seen(self, agent: Agent) -> bool:
        return agent.clock[self.entry] >= self.least

    def done(self, user: Agent, agent: Agent) -> bool:
        """Returns True if the agent's clock shows that `user` has ended its reads of the buffer, and its writes."""
        end = self.reads.get(user, 0 if user is self.writer else None)
        if end is None:
            return False
        return agent.clock[user.number] >= (max(end, self.written) if user is self.writer else end)


class Role(Agent):
    """A Role is a warpgroup or producer in the proof, with its remaining events and what it has in flight."""

    def __init__(self, process: Process, events: Sequence[Event], number: int, clock_size: int):
        super().__init__(str(process), number, clock_size)
        self.process, self.events = process, deque(events)
        self.products: deque[list[Buffer]] = deque()
        self.stores: deque[list[Buffer]] = deque()
        # Buffers that the role has written, and those that it has read and the TMA may load over; none is fenced yet.
        self.unfenced: list[Buffer] = []
        self.reading: list[Buffer] = []
        # The phase of the barrier that the role waits at, once the role has arrived there.
        self.meeting: int | None = None
        self.reached_out = False

    def read(self, buffers: Sequence[Buffer]) -> None:
        """Notes that the role's threads read these buffers now; a load over one that TMA filled must wait for a fence.

        What the threads have asked for may still be on its way when they arrive at a barrier.
        """
        for buffer in buffers:
            self._use(buffer, self.now)
            if buffer.by_tma:
                buffer.unfenced.add(self)
                self.reading.append(buffer)

    def issue(self, buffers: Sequence[Buffer]) -> None:
        """Notes a product that reads the buffers, in flight until the role waits for it."""
        self.products.append([*buffers])
        for buffer in buffers:
            self._use(buffer, None)

    def products_wait(self, left: int) -> None:
        self._retire(self.products, left)

    def write(self, buffer: Buffer, name: str) -> None:
        """Notes that the role's warps write over a loaded buffer; raises Unsafe if they may still read it.

        It raises Unsafe, too, where something in flight reads the buffer, or another role has written it.
        """
        read = buffer.reads.get(self, 0)
        if read is None:
            raise unsafe(Rule.OVERWRITE, f"{self} writes over {name}, which something in flight reads")
        if not self._all_made(read):
            raise unsafe(Rule.OVERWRITE, f"{self} writes over {name}, which its other warps may still read")
        if buffer.writer not in (None, self):
            raise unsafe(Rule.OVERWRITE, f"{self} writes over {name}, which {buffer.writer} has written")
        self._wrote(buffer)

    def put(self, buffer: Buffer) -> None:
        """Notes that the role's warps write computed values into a buffer, each its part, not fenced yet.

        Products that read the buffer are over: a product is all warps', and so is the wait for it.
        """
        self._wrote(buffer)

    def fence(self) -> None:
        """Notes a fence, which shows the TMA and products what the role's threads wrote, and ends their reads."""
        for buffer in self.unfenced:
            buffer.written, buffer.fenced = self.now, True
        self.unfenced.clear()
        for buffer in self.reading:
            buffer.unfenced.discard(self)
            if buffer.reads.get(self) is not None:
                buffer.reads[self] = self.now
        self.reading.clear()

    def store(self, buffers: Sequence[Buffer]) -> None:
        """Notes a TMA store out of the buffers; raises Unsafe unless all warps of the role wrote and fenced them.

        One of the warps issues it.
        """
        for buffer in buffers:
            self._must_be_shared(buffer, "stores")
            buffer.reads[self] = None
        self.stores.append([*buffers])

    def stored(self, left: int) -> None:
        self._retire(self.stores, left)

    def must_be_one_warp(self, does: str) -> None:
        if self.process.warps > 1:
            raise unsafe(Rule.ONE_WARP, f"{self} {does} and has {self.process.warps} warps: one was expected")

    def check_the_end(self) -> None:
        if self.reached_out:
            raise unsafe(Rule.MAY_HAVE_ENDED, f"{self} reaches another block, which may have ended")
        for what, flight in (("product", self.products), ("store", self.stores)):
            if flight:
                raise unsafe(Rule.IN_FLIGHT, f"{self} ends with a {what} in flight")

    def _all_made(self, time: int) -> bool:
        """Returns True if the role has one warp, or a barrier has shown that all its warps made the event at `time`."""
        return self.process.warps == 1 or time <= self.met

    def _wrote(self, buffer: Buffer) -> None:
        buffer.writer, buffer.written, buffer.fenced = self, self.now, False
        self.unfenced.append(buffer)

    def _must_be_shared(self, buffer: Buffer, does: str) -> None:
        if buffer.writer is not self or not buffer.fenced or not self._all_made(buffer.written):
            raise unsafe(Rule.PROXY, f"{self} {does} what its warps may not have written and fenced")

    def _use(self, buffer: Buffer, end: int | None) -> None:
        if buffer.computed:
            self._must_be_shared(buffer, "multiplies")
        elif buffer.writer:
            raise unsafe(Rule.OTHER, f"{self} reads what {buffer.writer} has written over")
        if end is None or buffer.reads.get(self, 0) is not None:
            buffer.reads[self] = end

    def _retire(self, flight: deque[list[Buffer]], left: int) -> None:
        """Ends products or stores in flight, the oldest first, until only `left` are left."""
        while len(flight) > left:
            for buffer in flight.popleft():
                if not any(buffer in other for other in flight):
                    buffer.reads[self] = self.now
