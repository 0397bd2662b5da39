"""This module replays what a block of the generated pipelined kernel did: every read finds its data, and can see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tl_attention.codeproof.verdict import Unsafe
from tl_attention.program.events import Event

Q, OUTPUT = "Q", "Output"
# The product that reads a ring.
PRODUCTS = {"K": "mma0", "V": "mma1"}
# Events that order the others.
WAITS = {"commit copies", "copies wait", "sync", "fence", "products wait", "stored"}


class Load(NamedTuple):
    """A Load is one filling of a buffer, with KV block `block` of K or V, with Q, or with the output on its way out."""

    name: str
    block: int

    def __str__(self) -> str:
        return f"load_{self.name.lower()}({self.block})"


class _Replay:
    """A _Replay tracks where each tile is, who can see the tile, and who may overwrite it."""

    def __init__(self) -> None:
        self.slots: dict[tuple[str, int], Load] = {}
        self.groups: list[set[Load]] = [set()]
        # What threads wrote, by themselves or by cp.async, must have arrived (for the thread that wrote it), be past a
        # barrier of all threads (for the others), and past a fence (for the asynchronous proxy of products and TMA).
        # For cp.async TileLang accepts a fence behind the copy's issue; NVIDIA's own loops over cp.async have no fence.
        self.arrived, self.seen, self.fenced = set[Load](), set[Load](), set[Load]()
        self.in_flight, self.read, self.free = set[Load](), set[Load](), set[Load]()
        # How often each buffer was filled, and how many products read each ring.
        self.fills, self.products = Counter[str](), Counter[str]()
        self.storing = False

    def step(self, event: Event) -> None:
        # In the synchronous model each product is waited for where it is issued.
        if self.in_flight and event.kind != "products wait":
            raise Unsafe(f"a product that reads {sorted(self.in_flight)} is not waited for at once")
        match event.kind:
            case "load":
                self.groups[-1].add(self.fill(event, event.name))
            case "write":
                # The threads themselves write Q, sometimes K and V, from their places, and the output.
                self.arrived.add(self.fill(event, event.name if event.place else OUTPUT))
            case "commit copies":
                self.groups.append(set())
            case "copies wait":
                self.arrived.update(*self.groups[: max(0, len(self.groups) - 1 - event.value)])
            case "sync":
                if event.name:
                    raise Unsafe(f"{event}, expected barriers of all threads")
                self.seen |= self.arrived
                self.free |= self.read
            case "fence" if event.value:
                # A fence by a thread serves what the thread can see, for what it does next. A fence by all threads
                # serves whatever has arrived.
                self.fenced |= {load for load in self.seen if load.name == OUTPUT}
            case "fence":
                self.fenced |= self.arrived.union(*self.groups)
            case "product":
                self.product(event)
            case "products wait" if event.value == 0:
                self.read |= self.in_flight
                self.in_flight = set()
            case "store":
                load = self.slots.get((event.name, event.index))
                if load != Load(OUTPUT, 0) or load not in self.seen & self.fenced:
                    raise Unsafe(
                        "the output is stored with no barrier, or no fence, between its writing and the TMA store"
                    )
                self.storing = True
            case "stored" if event.value == 0:
                self.storing = False

    def fill(self, event: Event, name: str) -> Load:
        load, key = Load(name, self.fills[name]), (event.name, event.index)
        old = self.slots.get(key)
        if old and old not in self.free:
            raise Unsafe(f"{load} overwrites what a product of block {old.block} reads, with no barrier between")
        self.slots[key] = load
        self.fills[name] += 1
        return load

    def product(self, event: Event) -> None:
        ring, block = event.name, self.products[event.name]
        what = f"{PRODUCTS[ring]}({block})"
        loads = [self.slots.get((buffer, slot)) for buffer, slot, _ in event.reads]
        wanted = [Load(name, block if name == ring else 0) for name, *_ in event.reads]
        if loads != wanted:
            raise Unsafe(f"{what} reads {loads}, expected {wanted}")
        for load in wanted:
            if load not in self.seen:
                raise Unsafe(f"{what} does not wait for {load}")
            if load not in self.fenced:
                raise Unsafe(f"{what} reads {load} with no fence between")
        self.products[ring] += 1
        self.in_flight = {*wanted}


def check_waits(events: Iterable[Event]) -> None:
    """Raises Unsafe if the events lack a wait, barrier or fence that a product, a load or the store needs."""
    replay = _Replay()
    for event in events:
        replay.step(event)
    if replay.in_flight:
        raise Unsafe(f"a product that reads {sorted(replay.in_flight)} is not waited for")
    if replay.storing:
        raise Unsafe("it does not wait for the TMA store of its output")
