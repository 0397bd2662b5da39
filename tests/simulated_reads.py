"""Warps read buffers themselves: until a fence, a load by TMA over such a buffer is a fault (see mbarrier_simulator.py)."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tl_attention.proof.events import Event, Process

Own = tuple[Process, int]
Buffer = tuple[int, str, int]


class Reads:
    """Reads have a number for each warp and buffer that the TMA fills and the warp reads: 1 after a read, until a fence."""

    def __init__(
        self, warps: Iterable[Own], roles: Mapping[Process, Sequence[Event]], slot: Callable[[object, int], int]
    ):
        loaded = {event.name for run in roles.values() for event in run if event.kind == "load"}
        self.slots: dict[Buffer, dict[Own, int]] = {}
        for process, warp in warps:
            for event in roles[process]:
                if event.kind == "read" and event.name in loaded:
                    buffer = (process.block, event.name, event.index)
                    self.slots.setdefault(buffer, {})[process, warp] = slot((buffer, process, warp, "read"), 0)

    def of_all(self, buffer: Buffer) -> list[int]:
        """Returns the numbers' slots of every warp that reads a buffer."""
        return [*self.slots.get(buffer, {}).values()]

    def of(self, own: Own, buffers: Iterable[Buffer] | None = None) -> list[int]:
        """Returns the numbers' slots of a warp, for some buffers or all.

        Only the warp, and loads over the buffers, touch these numbers.
        """
        places = (self.slots.get(buffer, {}) for buffer in (self.slots if buffers is None else buffers))
        return [slots[own] for slots in places if own in slots]

    def buffers(self, own: Own) -> list[Buffer]:
        """Returns the buffers that the warp reads."""
        return [buffer for buffer, slots in self.slots.items() if own in slots]
