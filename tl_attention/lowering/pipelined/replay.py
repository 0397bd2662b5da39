"""What a block of the generated pipelined kernel did, step by step: every read finds what it should, and can see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tl_attention.program.program import CONSUMER, Program
from tl_attention.proof.events import Event
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.row_tile import RowTile

Q, OUTPUT = "Q", "Output"


class Load(NamedTuple):
    """The load of a tile: Q's, or block `block` of K or V."""

    name: str
    block: int


@dataclass
class Replay:
    """What a block's threads do, step by step: where each tile is, who can see it, who may overwrite it.

    Data that threads wrote, by themselves or by cp.async, must have arrived (for the thread that wrote it), be past a
    barrier of all threads (for the others), and past a fence (for the asynchronous proxy of products and TMA). For
    cp.async TileLang lets one do that comes behind the copy's issue; NVIDIA's own loops over cp.async have none.
    """

    program: Program
    tile: RowTile
    lse: bool
    slots: dict[tuple[str, int], Load] = field(default_factory=dict)
    groups: list[set[Load]] = field(default_factory=lambda: [set()])
    arrived: set[Load] = field(default_factory=set)
    seen: set[Load] = field(default_factory=set)
    fenced: set[Load] = field(default_factory=set)
    in_flight: set[Load] = field(default_factory=set)
    read: set[Load] = field(default_factory=set)
    free: set[Load] = field(default_factory=set)
    order: list[tuple[str, int]] = field(default_factory=list)
    masked: bool = False
    stored: list[tuple[int, ...]] = field(default_factory=list)
    logarithms: int = 0
    storing: bool = False

    def check(self, events: Sequence[Event]) -> None:
        """Raise Unsafe where something is missing."""
        for event in events:
            handle = getattr(self, "_" + event.kind.replace(" ", "_"), None)
            if handle is None:
                raise Unsafe(f"{event} has no place in this kernel")
            # The synchronous model: each product is waited for where it is issued.
            if self.in_flight and event.kind != "products wait":
                raise Unsafe(f"a product that reads {sorted(self.in_flight)} is not waited for at once")
            handle(event)
        self._check_order()
        if self.in_flight or len(self.stored) != 1:
            raise Unsafe(f"a block stores {len(self.stored)} tiles")
        if self.logarithms != self.lse:
            raise Unsafe(f"a block stores the logarithms of {self.logarithms} tiles")
        if self.storing:
            raise Unsafe("it does not wait for the TMA store of its output")

    def _check_order(self) -> None:
        executed = len(self.tile.blocks) - self.tile.left_out
        steps = self.program.roles(executed)[CONSUMER]
        expected = [(step.op.statement, step.block) for step in steps if step.op.kind == "issue"]
        if self.order != expected:
            raise Unsafe(f"over {executed} blocks its loads and products are not in the Program's order")

    def _number(self, statement: str) -> int:
        return sum(name == statement for name, _ in self.order)

    # --- loads -------------------------------------------------------------------------------------------------

    def _load(self, event: Event) -> None:
        statement = f"load_{event.name.lower()}"
        block = self._number(statement)
        load = Load(event.name, block)
        self.tile.check_kv(event, block)
        self.order.append((statement, block))
        old = self.slots.get((event.name, event.index))
        if old and old not in self.free:
            raise Unsafe(
                f"{statement}({block}) overwrites what a product of block {old.block} reads, with no barrier between"
            )
        self.slots[event.name, event.index] = load
        self.groups[-1].add(load)

    def _commit_copies(self, event: Event) -> None:
        self.groups.append(set())

    def _copies_wait(self, event: Event) -> None:
        self.arrived.update(*self.groups[: max(0, len(self.groups) - 1 - event.value)])

    def _write(self, event: Event) -> None:
        """By the threads themselves: Q, and the output on its way out."""
        old = self.slots.get((event.name, event.index))
        if old and old not in self.free:
            raise Unsafe(f"{event.name} is overwritten, which a product may still read")
        if event.place:
            self.tile.check_q(event)
        load = Load(Q if event.place else OUTPUT, 0)
        self.slots[event.name, event.index] = load
        self.arrived.add(load)

    def _sync(self, event: Event) -> None:
        if event.name:
            raise Unsafe(f"{event}, expected barriers of all threads")
        self.seen |= self.arrived
        self.free |= self.read

    def _fence(self, event: Event) -> None:
        """One by all threads serves whatever has arrived; one by a thread what it can see, for what it does next."""
        self.fenced |= (
            self.arrived.union(*self.groups) if not event.value else {load for load in self.seen if load.name == OUTPUT}
        )

    # --- products ----------------------------------------------------------------------------------------------

    def _mask(self, event: Event) -> None:
        self.masked = True

    def _product(self, event: Event) -> None:
        loads = [self.slots.get((buffer, slot)) for buffer, slot, _ in event.reads]
        ring = event.name
        statement = self.program.table.readers[f"load_{ring.lower()}"][0]
        block = self._number(statement)
        wanted = [Load(ring, block)] + [Load(Q, 0)] * (len(loads) - 1)
        if loads != wanted:
            raise Unsafe(f"{statement}({block}) reads {loads}, expected {wanted}")
        for load in wanted:
            if load not in self.seen:
                raise Unsafe(f"{statement}({block}) does not wait for load_{load.name.lower()}({load.block})")
            if load not in self.fenced:
                raise Unsafe(f"{statement}({block}) reads load_{load.name.lower()}({load.block}) with no fence between")
        if event.place != (1,):
            raise Unsafe(f"{statement}({block}) does not add to what its accumulators have")
        if ring == "K":
            self._check_mask(block)
        self.order.append((statement, block))
        self.in_flight = {*wanted}

    def _check_mask(self, block: int) -> None:
        """The scores start as -inf where they are hidden, in every block that has any such."""
        if not self.masked:
            self.tile.check_unmasked(block)
        self.masked = False

    def _products_wait(self, event: Event) -> None:
        if event.value == 0:
            self.read |= self.in_flight
            self.in_flight = set()

    # --- the output --------------------------------------------------------------------------------------------

    def _store(self, event: Event) -> None:
        load = Load(OUTPUT, 0)
        if self.slots.get((event.name, event.index)) != load or load not in self.seen or load not in self.fenced:
            raise Unsafe("the output is stored with no barrier, or no fence, between its writing and the TMA store")
        self._output(event)
        self.storing = True

    def _output(self, event: Event) -> None:
        tile = self.tile
        if event.place != tile.place:
            raise Unsafe(f"it stores {event.place} as (row, head, batch), expected {tile.place}")
        # A TMA store leaves out what the tensor does not have.
        if event.kind == "output" and event.value != min(tile.schedule.block_M, tile.shape.seq_q - tile.place[0]):
            raise Unsafe(f"it stores {event.value} rows of its tile from row {tile.place[0]} on")
        self.stored.append(event.place)

    def _lse(self, event: Event) -> None:
        if event.place != self.tile.place:
            raise Unsafe(f"it stores logarithms of {event.place} as (row, head, batch), expected {self.tile.place}")
        self.logarithms += 1

    def _stored(self, event: Event) -> None:
        if event.value:
            raise Unsafe("it does not wait for the TMA store of its output")
        self.storing = False

    def _of_its_head(self, event: Event) -> None:
        """Of which head it is is looked at by itself."""

    def _left_out(self, event: Event) -> None:
        self.tile.left_out += event.value
