"""Makes operations of the run of one warp, by the rules that mbarrier_simulator.py states."""

from collections import deque
from typing import Any

from simulated_state import (
    ENDED,
    FENCED,
    LANDING,
    LOADED,
    NOTHING,
    WARP,
    WRITTEN,
    Barrier,
    Fault,
    Operation,
    Place,
    State,
    add_bytes,
    arrive,
    nothing,
    overwrite,
    use,
)

from tl_attention.program.events import CLUSTER, Event


class Warp:
    """A warp has its run in a process, as operations."""

    def __init__(self, machine: Any, number: int):
        self.machine, self.number = machine, number
        self.process, self.warp = machine.warps[number]
        self.block = self.process.block
        self.own = self.process, self.warp
        self.flights: dict[str, deque[list[tuple]]] = {"product": deque(), "store": deque()}
        self.full = machine.slot((number, "full"), 0)
        self.posts = machine.bit((number, "posts"))

    def run(self) -> list[Operation]:
        started = self.machine.started[self.block]
        life = self.machine.bit((self.block, "life"))
        run = [Operation(nothing, reads=life, ready=lambda state: bool(state[started]))]
        of_all = {"wait": self._wait, "arrive": self._arrive, "sync": self._sync, "signal": self._signal}
        of_all |= {"read": self._read, "write": self._write, "fence": self._fence, "product": self._product}
        of_all |= {"products wait": self._products_wait, "put": lambda event: self.machine.puts.put(self.own, event)}
        of_first = {"expect": self._expect, "load": self._load, "take": self._take}
        of_first |= {"store": self._store, "stored": self._stored}
        kinds = of_all | of_first if self.warp == 0 else of_all
        for event in self.machine.roles[self.process]:
            if event.kind in kinds:
                run += kinds[event.kind](event)
        return [*run, self._exit(), ENDED]

    # --- barriers ---

    def _barrier(self, block: int, name: str, index: int) -> Barrier:
        key, slot, count = (block, name, index), self.machine.slot, self.machine.counts[name]
        slots = slot((key, "pending"), count), slot((key, "tx"), 0), slot((key, "phase"), 0)
        return (*slots, count, self.machine.bit(key))

    def _no_posts(self, state: State) -> bool:
        """Says whether all arrivals that the warp has made elsewhere are there."""
        return not state[self.machine.flying] & self.machine.posted[self.number]

    def _wait(self, event: Event) -> list[Operation]:
        _, _, phase, _, bit = self._barrier(self.block, event.name, event.index)
        return [Operation(nothing, reads=bit, ready=lambda state: state[phase] & 1 != event.value)]

    def _arrive(self, event: Event) -> list[Operation]:
        if event.blocks == (self.block,):
            barrier = self._barrier(self.block, event.name, event.index)
            ready = self._no_posts if self.machine.blocks[1:] else None
            return [Operation(lambda state: arrive(state, barrier, event.value), self.posts, 0, barrier[-1], ready)]
        machine, flying, bits = self.machine, self.machine.flying, 0
        landings = [self._arrival(block, event) for block in event.blocks]
        for block, landing in zip(event.blocks, landings):
            bits |= machine.flight(landing, block)
        machine.posted[self.number] |= bits

        def do(state: State) -> None:
            state[flying] |= bits

        post = Operation(do, changes=self.posts, ready=self._no_posts)
        post.landings = landings
        return [post]

    def _arrival(self, block: int, event: Event) -> Operation:
        """Makes the operation of an arrival that lands in a block."""
        machine, barrier = self.machine, self._barrier(block, event.name, event.index)

        def do(state: State) -> None:
            machine.reach(state, block)
            arrive(state, barrier, event.value)

        return Operation(do, machine.bit((block, "life")), self.posts, barrier[-1])

    def _expect(self, event: Event) -> list[Operation]:
        barrier = self._barrier(self.block, event.name, event.index)
        return [Operation(lambda state: add_bytes(state, barrier, event.value), changes=barrier[-1])]

    def _signal(self, event: Event) -> list[Operation]:
        block, threads = (-1, 0) if event.name == CLUSTER else (self.block, event.value)
        key = (block, event.name, event.index)
        arrived, expected, full = (self.machine.slot((key, what), 0) for what in ("arrived", "threads", "full"))
        ours, running = self.full, self.machine.running

        def do(state: State) -> None:
            state[ours] = state[full]
            threads_now = threads or state[running] * WARP
            if threads and state[arrived] and state[expected] != threads:
                raise Fault("two numbers of threads at a named barrier")
            state[expected] = threads
            state[arrived] += WARP
            if state[arrived] > threads_now:
                raise Fault("more threads than a named barrier expects")
            if state[arrived] == threads_now:
                state[arrived] = state[expected] = 0
                state[full] += 1

        # If the numbers differ, the first to arrive counts.
        alike, bit = len(self.machine.threads[key]) == 1, self.machine.bit(key)
        return [Operation(do, self.posts, 0 if alike else bit, bit if alike else 0, self._no_posts)]

    def _sync(self, event: Event) -> list[Operation]:
        key = (-1 if event.name == CLUSTER else self.block, event.name, event.index)
        (arrival,) = self._signal(event)
        full, ours = self.machine.slots[key, "full"], self.full
        return [arrival, Operation(nothing, self.machine.bit(key), ready=lambda state: state[full] > state[ours])]

    # --- shared memory ---

    def _place(self, block: int, name: str, index: int) -> Place:
        key, slot = (block, name, index), self.machine.slot
        parts = [*self.machine.parts.get(key, {}).values()]
        return slot((key, "holds"), NOTHING), slot((key, "reading"), 0), parts, self.machine.bit((key, "buffer"))

    def _load(self, event: Event) -> list[Operation]:
        machine, flying = self.machine, self.machine.flying
        keys = [(block, event.name, event.index) for block in event.blocks]
        places = [(self._place(*key), machine.reads.of_all(key)) for key in keys]
        landings = [self._landing(block, event) for block in event.blocks]
        flight = changes = 0
        for block, landing, (place, _) in zip(event.blocks, landings, places):
            flight |= machine.flight(landing, block)
            changes |= place[-1]

        def do(state: State) -> None:
            for place, unfenced in places:
                overwrite(state, place, LANDING, unfenced)
            state[flying] |= flight

        load = Operation(do, changes=changes)
        load.landings = landings
        return [load]

    def _landing(self, block: int, event: Event) -> Operation:
        machine, barrier = self.machine, self._barrier(block, f"{event.name}_full", event.index)
        holds, _, _, bit = self._place(block, event.name, event.index)

        def do(state: State) -> None:
            machine.reach(state, block)
            state[holds] = event.step
            add_bytes(state, barrier, -1)

        return Operation(do, machine.bit((block, "life")), bit | barrier[-1])

    def _take(self, event: Event) -> list[Operation]:
        taken = []
        for block in event.blocks:
            place = self._place(block, event.name, event.index)

            def do(state: State, block: int = block, place: Place = place) -> None:
                self.machine.reach(state, block)
                overwrite(state, place, event.step)

            taken.append(Operation(do, self.machine.bit((block, "life")), place[-1]))
        return taken

    def _loaded(self, event: Event) -> list[tuple[str, int, int]]:
        """Returns what an event reads that no threads have put there."""
        return [read for read in event.reads if read[0] not in self.machine.puts.names]

    def _uses(self, event: Event) -> tuple[list[tuple[int, int, list[int]]], int]:
        """Returns for what an event reads (what must be held as it was loaded, and where; the bits of all)."""
        uses, bits = [], 0
        for name, index, step in self._loaded(event):
            holds, _, parts, bit = self._place(self.block, name, index)
            uses.append((holds, step, parts))
            bits |= bit
        return uses, bits

    def _read(self, event: Event) -> list[Operation]:
        uses, bits = self._uses(event)
        ours = self.machine.reads.of(self.own, [(self.block, name, index) for name, index, _ in event.reads])

        def do(state: State) -> None:
            use(state, uses)
            for slot in ours:
                state[slot] = 1

        return [Operation(do, bits)]

    def _product(self, event: Event) -> list[Operation]:
        uses, bits = self._uses(event)
        places = [self._place(self.block, name, index) for name, index, _ in self._loaded(event)]
        self.flights["product"].append(places)

        def do(state: State) -> None:
            use(state, uses)
            for place in places:
                state[place[1]] += 1

        return [Operation(do, bits), *self.machine.puts.product(self.own, event)]

    def _products_wait(self, event: Event) -> list[Operation]:
        return [*self._retire("product", event.value), *self.machine.puts.wait(self.own, event.value)]

    def _retire(self, kind: str, left: int) -> list[Operation]:
        flight, done = self.flights[kind], []
        while len(flight) > left:
            done += flight.popleft()
        slots, bits = [place[1] for place in done], 0
        for place in done:
            bits |= place[-1]

        def do(state: State) -> None:
            for slot in slots:
                state[slot] -= 1

        return [Operation(do, bits)]

    def _write(self, event: Event) -> list[Operation]:
        holds, reading, _, bit = self._place(self.block, event.name, event.index)
        part = self.machine.parts[self.block, event.name, event.index][self.process, self.warp]
        steps = [step for _, _, step in event.reads]

        def do(state: State) -> None:
            if [state[holds]] != steps:
                raise Fault("writes over something else")
            if state[reading]:
                raise Fault("writes over what is read")
            state[part] = WRITTEN

        return [Operation(do, changes=bit)]

    def _fence(self, event: Event) -> list[Operation]:
        bits, touched, own, seen = 0, 0, [], self.machine.reads.of(self.own)
        for buffer in self.machine.reads.buffers(self.own):
            touched |= self._place(*buffer)[-1]
        for place, parts in self.machine.parts.items():
            if (self.process, self.warp) in parts:
                own.append(parts[self.process, self.warp])
                bits |= self._place(*place)[-1]

        def do(state: State) -> None:
            for part in own:
                state[part] = state[part] and FENCED
            for slot in seen:
                state[slot] = 0

        return [Operation(do, touched, bits), *self.machine.puts.fence(self.own)]

    def _store(self, event: Event) -> list[Operation]:
        place = holds, reading, parts, bit = self._place(self.block, event.name, event.index)
        written = self.machine.parts.get((self.block, event.name, event.index), {})
        expected = [FENCED if process == self.process else LOADED for process, _ in written]
        steps = [step for _, _, step in event.reads]
        self.flights["store"].append([place])

        def do(state: State) -> None:
            if [state[holds]] != steps or FENCED not in expected or [state[part] for part in parts] != expected:
                raise Fault("stores what is not written and fenced")
            state[reading] += 1

        return [Operation(do, changes=bit)]

    def _stored(self, event: Event) -> list[Operation]:
        return self._retire("store", event.value)

    def _exit(self) -> Operation:
        machine, alive, block = self.machine, self.machine.alive[self.block], self.block
        unfinished = any(self.flights.values())
        arrived, _, full = (machine.slot(((-1, CLUSTER, 0), what), 0) for what in ("arrived", "threads", "full"))

        def do(state: State) -> None:
            state[alive] -= 1
            state[machine.running] -= 1
            if unfinished:
                raise Fault("ends with something in flight")
            if not state[alive] and state[machine.flying] & machine.into[block]:
                raise Fault("a block ends before something in flight reaches it")
            if state[arrived] and state[arrived] == state[machine.running] * WARP:
                state[arrived] = 0
                state[full] += 1

        return Operation(do, changes=machine.bit((block, "life")) | machine.bit((-1, CLUSTER, 0)))
