"""Runs event programs as the hardware does, in any order, and says what goes wrong; it knows nothing of the proof.

The rules are the PTX ISA's. An mbarrier has a phase, pending arrivals and a tx-count, which expect-tx raises and
complete-tx lowers, also below zero; the phase ends when both are zero, and the next begins with all arrivals pending. A
wait on a parity passes while the phase before the current one has that parity. An arrival where none is pending is
undefined. bar.sync and bar.arrive count threads up to the number that they name; barrier.cluster waits for all threads
that have not exited. A load by TMA may write from when it is issued until it lands, any time later, in each block by
itself. A product reads until its warp waits for it, a store by TMA until its thread does. The TMA, and a product, are
sure to see what a thread wrote, and the TMA not to write over what it still reads, only after a fence of that thread.
What warps put in a buffer is multiplied by their warpgroup as a whole: any of its warps may begin that, and none has
waited for it before all of them have issued it.

Each warp of a process runs by itself; its first issues loads and stores. An arrival at several blocks reaches each at
a time of its own, but before the warp's next arrival anywhere, which releases what comes before it.
"""

from collections.abc import Mapping, Sequence

from simulated_buffers import Puts, Reads
from simulated_state import ENDED, LOADED, Fault, Operation, State
from simulated_warp import Warp

from tl_attention.program.events import CLUSTER, Event, Process


class Machine:
    """A machine runs a program. Its State is a list of numbers, of which the first are each warp's place in its run.

    Choices are numbered: the warps, then the starts of blocks, then all that is ever in flight.
    """

    def __init__(self, roles: Mapping[Process, Sequence[Event]], counts: Mapping[str, int]):
        self.roles, self.counts = roles, counts
        self.warps = [(process, warp) for process in roles for warp in range(process.warps)]
        self.blocks = sorted({process.block for process in roles})
        self.first: State = [0] * len(self.warps)
        self.slots: dict[object, int] = {}
        self.bits: dict[object, int] = {}
        self.flying = self.slot("flying", 0)
        self.running = self.slot("running", len(self.warps))
        self.landings: list[Operation] = []
        self.into = dict.fromkeys(self.blocks, 0)
        self.posted = [0] * len(self.warps)
        self.started: dict[int, int] = {}
        self.alive: dict[int, int] = {}
        for block in self.blocks:
            self.started[block] = self.slot((block, "started"), int(len(self.blocks) == 1))
            self.alive[block] = self.slot((block, "alive"), sum(process.block == block for process, _ in self.warps))
        # A block that is alone has started.
        self.starts = [self._start(block) for block in self.blocks if self.blocks[1:]]
        # Choices that are always there: warps and starts. The others are in flight.
        self.lasting = len(self.warps) + len(self.starts)
        self.threads: dict[tuple, set[int]] = {}
        for process, run in roles.items():
            for event in run:
                if event.kind in ("sync", "signal"):
                    key = (-1 if event.name == CLUSTER else process.block, event.name, event.index)
                    self.threads.setdefault(key, set()).add(event.value)
        self.parts: dict[tuple, dict[tuple[Process, int], int]] = {}
        for process, warp in self.warps:
            for event in roles[process]:
                if event.kind == "write":
                    place = (process.block, event.name, event.index)
                    self.parts.setdefault(place, {})[process, warp] = self.slot((place, process, warp), LOADED)
        self.reads = Reads(self.warps, roles, self.slot)
        self.puts = Puts(self.warps, roles, self.slot, self.bit)
        self.runs = [Warp(self, number).run() for number in range(len(self.warps))]
        self.idle = [
            slot
            for key, slot in self.slots.items()
            if isinstance(key, tuple) and key[-1] in ("pending", "tx", "arrived")
        ]

    def slot(self, name: object, value: int) -> int:
        """Returns the place of a number in the State; the number is `value` at first."""
        if name not in self.slots:
            self.slots[name] = len(self.first)
            self.first.append(value)
        return self.slots[name]

    def bit(self, thing: object) -> int:
        """Returns the bit of something that operations touch."""
        return self.bits.setdefault(thing, 1 << len(self.bits))

    def _start(self, block: int) -> Operation:
        started = self.started[block]

        def do(state: State) -> None:
            state[started] = 1

        return Operation(do, changes=self.bit((block, "life")), ready=lambda state: not state[started])

    def flight(self, landing: Operation, block: int) -> int:
        """Returns the bit, in the number of what is flying, of something that will land in a block."""
        bit = 1 << len(self.landings)
        self.landings.append(landing)
        if block in self.into:
            self.into[block] |= bit
        return bit

    # --- an order -----------------------------------------------------------------------------------------------

    def operation(self, state: State, choice: int) -> Operation | None:
        """Returns what a choice would do; None if it cannot happen now."""
        warps = len(self.warps)
        if choice < warps:
            operation = self.runs[choice][state[choice]]
        elif choice < self.lasting:
            operation = self.starts[choice - warps]
        else:
            number = choice - self.lasting
            return self.landings[number] if state[self.flying] >> number & 1 else None
        return operation if operation.ready is None or operation.ready(state) else None

    def choices(self, state: State) -> list[int]:
        return [choice for choice in range(self.lasting) if self.operation(state, choice)] + self.flights(state)

    def flights(self, state: State) -> list[int]:
        """Returns the choices of what can land."""
        flying, found, first = state[self.flying], [], self.lasting - 1
        while flying:
            found.append(first + (flying & -flying).bit_length())
            flying &= flying - 1
        return found

    def take(self, state: State, choice: int) -> None:
        """Makes a ready choice happen. Raises Fault."""
        if choice < len(self.warps):
            operation = self.runs[choice][state[choice]]
            state[choice] += 1
            operation.do(state)
        elif choice < self.lasting:
            self.starts[choice - len(self.warps)].do(state)
        else:
            number = choice - self.lasting
            state[self.flying] &= ~(1 << number)
            self.landings[number].do(state)

    def reach(self, state: State, block: int) -> None:
        if block not in self.started or not state[self.started[block]]:
            raise Fault("reaches a block that has not started")
        if not state[self.alive[block]]:
            raise Fault("reaches a block that has ended")

    def check_the_end(self, state: State) -> None:
        """Checks a state in which nothing can go on. Raises Fault unless all is done."""
        if any(run[state[warp]] is not ENDED for warp, run in enumerate(self.runs)):
            raise Fault("deadlock")
        if any(state[slot] != self.first[slot] for slot in self.idle):
            raise Fault("left over")
