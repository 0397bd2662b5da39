"""This module reads one process's products: the instructions between warpgroup_arrive and commit, waits and fences.

A wait names no register. So before a product, and behind the wait for it, the code must fence the registers that the
product reads and writes, or the compiler may move what computes on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from tl_attention.codeproof.run.thread_slice import Reading, ThreadSlice
from tl_attention.codeproof.terms.term import Term
from tl_attention.codeproof.tiles.tiles import Product, Tile, k_major
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.program.events import Event, Read


class WgmmaGroups:
    """WgmmaGroups makes events of the wgmma instructions, fences and waits of a process, and checks them."""

    def __init__(self, reading: Reading, warpgroups: np.ndarray):
        self.reading, self.warpgroups = reading, warpgroups  # of each thread, the warpgroup's number in its block
        self.in_flight: deque[Product] = deque()
        self.open: list[ThreadSlice] | None = None
        self.fenced: set[str] = set()
        self.unfenced: set[str] = set()

    def copy(self) -> WgmmaGroups:
        """Returns WgmmaGroups with the same products in flight and the same fences."""
        other = WgmmaGroups(self.reading, self.warpgroups)
        other.in_flight, other.fenced, other.unfenced = deque(self.in_flight), set(self.fenced), set(self.unfenced)
        return other

    def join(self, other: WgmmaGroups, line: int) -> None:
        """Takes what holds on both of two ways to a line; raises Unsafe where not the same products are in flight."""
        if self.open is not None or other.open is not None or self.in_flight != other.in_flight:
            raise Unsafe(f"line {line}: on one of two ways to it a product is in flight, on the other not")
        self.fenced &= other.fenced
        self.unfenced |= other.unfenced

    def check_settled(self, part: ThreadSlice) -> None:
        """Raises Unsafe for a step between a product's lines, or before the product's registers are fenced."""
        if self.open is not None:
            raise Unsafe(f"line {part.line}: {part.seen.kind} stands among a product's instructions")
        if self.unfenced:
            names = ", ".join(sorted(self.unfenced))
            raise Unsafe(f"line {part.line}: {names} of a product is not fenced before what follows it")

    def check_registers(self, part: ThreadSlice) -> None:
        """Raises Unsafe for a step that uses the accumulators, or writes the operands, of a product in flight.

        Until the wait for the product that is undefined (PTX ISA, wgmma.mma_async: "accessing the registers").
        """
        touched, written = part.seen.registers
        for product in self.in_flight if touched else ():
            if product.accumulators in touched:
                raise Unsafe(
                    f"line {part.line}: {product.accumulators} is used before the wait for the product into it"
                )
            if product.a in written:
                raise Unsafe(f"line {part.line}: {product.a} is written before the wait for the product that reads it")

    def computed(self) -> None:
        """Notes that threads compute on registers, after which no register counts as fenced."""
        self.fenced.clear()

    def arrive(self, part: ThreadSlice) -> None:
        """Opens the product whose instructions come next."""
        self.open = []

    def instruction(self, part: ThreadSlice) -> None:
        """Adds an instruction to the open product; raises Unsafe where no product is open."""
        if self.open is None:
            raise Unsafe(f"line {part.line}: a product is issued with no warpgroup_arrive before it")
        self.open.append(part)

    def commit(self, part: ThreadSlice) -> Iterator[Event]:
        """Ends the open product and yields its event; raises Unsafe if it is unknown or its registers are unfenced."""
        instructions, self.open = self.open, None
        if not instructions:
            raise Unsafe(f"line {part.line}: it commits no product")
        product = self.reading.products.get(instructions[0].seen.values["d"])
        if product is None:
            raise Unsafe(f"line {part.line}: a product into {instructions[0].seen.values['d']}")
        for name in (product.accumulators, product.a):
            if isinstance(name, str) and name not in self.fenced:
                raise Unsafe(f"line {part.line}: {name} is not fenced before the product")
        self.unfenced = {name for name in (product.accumulators, product.a) if isinstance(name, str)}
        self.in_flight.append(product)
        yield self._product(product, instructions)

    def _product(self, product: Product, instructions: Sequence[ThreadSlice]) -> Event:
        line = instructions[0].seen.line + 1
        if len(instructions) != product.steps:
            raise Unsafe(f"line {line}: a product of {len(instructions)} instructions, expected {product.steps}")
        slots, keeps = set(), []
        warpgroup = self.warpgroups
        for step, part in enumerate(instructions):
            values = part.seen.values
            at, b_at = np.broadcast_to(part.value("a_at"), warpgroup.shape), part.same("b_at")
            a = (product.a.buffer, k_major(product.a)) if isinstance(product.a, Tile) else product.a
            b = (product.b.buffer, product.b_layout)
            if (values["a"], values["b"], values["d"]) != (a, b, product.accumulators) or part.same("d_at"):
                raise Unsafe(f"line {line}: a product of {values['a']}, {values['b']} and {values['d']}")
            if values["form"] != product.form(self.reading.dtype):
                raise Unsafe(f"line {line}: a product of the form {values['form']}")
            slot, offset = divmod(b_at, product.b.elements * DTYPE_BYTES)
            if offset != product.b_offset(step) or (at != product.a_offset(step, warpgroup)).any():
                raise Unsafe(f"line {line}: instruction {step} of a product reads other columns of its operands")
            slots.add(slot)
            keeps.append(kept if isinstance(kept := part.same("keeps"), Term) else int(kept != 0))
        if len(slots) != 1 or set(keeps[1:]) - {1}:
            raise Unsafe(f"line {line}: a product's instructions read slots {sorted(slots)} and keep {keeps}")
        slot = slots.pop()
        reads: tuple[Read, ...] = ((product.b.buffer, slot, 0),)
        if isinstance(product.a, Tile):
            reads += ((product.a.buffer, int(warpgroup[0]) if product.a.slots > 1 else 0, 0),)
        return Event("product", product.b.buffer, slot, reads=reads, place=(keeps[0],))

    def wait(self, part: ThreadSlice) -> Iterator[Event]:
        """Yields the event of a wait, after which only as many products as the step's value are in flight.

        The accumulators of the finished products may be read once they are fenced.
        """
        left = part.same("value")
        if self.open is not None:
            self.check_settled(part)
        while len(self.in_flight) > left:
            self.unfenced.add(self.in_flight.popleft().accumulators)
        yield Event("products wait", value=left)

    def fence_operand(self, part: ThreadSlice) -> None:
        """Notes that the registers that a step names are fenced, so the compiler must have them where they stand."""
        self.fenced.add(part.seen.name)
        self.unfenced.discard(part.seen.name)
