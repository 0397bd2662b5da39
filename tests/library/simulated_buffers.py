"""Warps read buffers, and put parts in them for their products, by the rules that mbarrier_simulator.py states."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from simulated_state import FENCED, WRITTEN, Fault, Operation, State

from tl_attention.program.events import Event, Process

Own = tuple[Process, int]
Buffer = tuple[int, str, int]


class Reads:
    """Reads have a number for each warp and buffer that the TMA fills and the warp reads: 1 from a read to a fence."""

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


class Puts:
    """Puts have each buffer's parts, one for each warp: what is in a part, and how many of the warp's products read it.

    The part of step `step` is the number 2 * step + WRITTEN, or + FENCED; at first it is 0.
    """

    def __init__(
        self,
        warps: Sequence[Own],
        roles: Mapping[Process, Sequence[Event]],
        slot: Callable[[object, int], int],
        bit: Callable[[object], int],
    ):
        self.names = {event.name for run in roles.values() for event in run if event.kind == "put"}
        self.parts: dict[tuple, dict[Own, tuple[int, int]]] = {}
        self.bits: dict[tuple, int] = {}
        # The products of each warp that may be in flight: their number, and what they read.
        self.flights: dict[Own, deque[tuple[int, list[tuple[int, int]]]]] = {own: deque() for own in warps}
        self.numbers = dict.fromkeys(warps, 0)
        self.issued = {own: slot((own, "issued"), 0) for own in warps}
        self.issues = {own: bit((own[0], "issues")) for own in warps}
        for own in warps:
            for event in roles[own[0]]:
                for name, index in [(event.name, event.index), *(read[:2] for read in event.reads)]:
                    if name in self.names:
                        key = own[0].block, name, index
                        part, reading = slot((key, own), 0), slot((key, own, "reading"), 0)
                        self.parts.setdefault(key, {})[own] = part, reading
                        self.bits[key] = bit((key, "parts"))

    def put(self, own: Own, event: Event) -> list[Operation]:
        """Puts a warp's part, which no product of the warp itself or of another warpgroup may be reading."""
        key = own[0].block, event.name, event.index
        part = self.parts[key][own][0]
        readings = [
            reading for other, (_, reading) in self.parts[key].items() if other[0] != own[0] or other[1] == own[1]
        ]

        def do(state: State) -> None:
            if any(state[reading] for reading in readings):
                raise Fault("writes over what is read")
            state[part] = 2 * event.step + WRITTEN

        return [Operation(do, changes=self.bits[key])]

    def fence(self, own: Own) -> list[Operation]:
        """Fences what the warp has put."""
        mine = [(key, parts[own][0]) for key, parts in self.parts.items() if own in parts]
        changes = sum(self.bits[key] for key, _ in mine)

        def do(state: State) -> None:
            for _, part in mine:
                # From WRITTEN to FENCED.
                state[part] += state[part] % 2

        return [Operation(do, changes=changes)] if mine else []

    def product(self, own: Own, event: Event) -> list[Operation]:
        """Issues a product of all parts of its warpgroup, which must be there when its first warp issues it."""
        wanted, readings, bits = [], [], 0
        for name, index, step in event.reads:
            if name in self.names:
                key = own[0].block, name, index
                for (process, _), (part, _) in self.parts[key].items():
                    wanted.append((part, 2 * step + FENCED if process == own[0] else 0))
                readings.append((self.bits[key], self.parts[key][own][1]))
                bits |= self.bits[key]
        self.numbers[own] += 1
        self.flights[own].append((self.numbers[own], readings))
        issued = self.issued[own]

        def do(state: State) -> None:
            if any(state[part] != value for part, value in wanted):
                raise Fault("multiplies what is not written and fenced")
            for _, reading in readings:
                state[reading] += 1
            state[issued] += 1

        return [Operation(do, bits, adds=self.issues[own])] if self.names else []

    def wait(self, own: Own, left: int) -> list[Operation]:
        """Waits for products: a product ends for all of its warps, so not before the last warp has issued it."""
        flight, done, number = self.flights[own], [], 0
        while len(flight) > left:
            ended, readings = flight.popleft()
            done += readings
            number = ended if readings else number
        issued = [slot for (process, _), slot in self.issued.items() if process == own[0]]

        def do(state: State) -> None:
            for _, reading in done:
                state[reading] -= 1

        def ready(state: State) -> bool:
            return all(state[slot] >= number for slot in issued)

        bits = self.issues[own]
        for bit, _ in done:
            bits |= bit
        return [Operation(do, bits, ready=ready)] if done else []
