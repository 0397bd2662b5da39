"""What warps read themselves, by the rules that mbarrier_simulator.py states: a load by TMA over it is a fault until a fence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tl_attention.proof.events import Event, Process

Own = tuple[Process, int]
Buffer = tuple[int, str, int]


class Reads:
    """A number for each warp and buffer that the TMA fills and the warp reads: 1 where it has, and not fenced that."""

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
        """Those of every warp that reads a buffer."""
        return [*self.slots.get(buffer, {}).values()]

    def of(self, own: Own, buffers: Iterable[Buffer] | None = None) -> list[int]:
        """Those of a warp, of some buffers or of all: only it, and who loads over them, touches these."""
        places = (self.slots.get(buffer, {}) for buffer in (self.slots if buffers is None else buffers))
        return [slots[own] for slots in places if own in slots]

    def buffers(self, own: Own) -> list[Buffer]:
        """Which the warp reads."""
        return [buffer for buffer, slots in self.slots.items() if own in slots]
