"""Holds what a block of the generated mma.sync kernel did to the Program, operation by operation.

That the Program's own waits and barriers are enough is proved of the Program (`replay.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tl_attention.loop.table import whole
from tl_attention.lowering.mma_sync.dialect import Q_LOAD
from tl_attention.lowering.mma_sync.pieces import KEEP_Q, OF_D, PAIR, Pieces
from tl_attention.lowering.mma_sync.resources import BUFFERS
from tl_attention.program.program import Operation, Program
from tl_attention.proof.events import Event
from tl_attention.proof.generated.matrices import SIDE, Matrix
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.row_tile import RowTile

# The buffer that a statement's fragments are of, and their load.
TILES = {"frag_q": ("Q", Q_LOAD), "frag_k": ("K", "load_k"), "frag_v": ("V", "load_v"), KEEP_Q: ("Q", Q_LOAD)}
ACCUMULATORS = {"mma0": "acc_s", "mma1": "acc_o"}
FIELDS = len(Matrix._fields)
END = Event("end")


@dataclass
class Comparison:
    """`registers` has, of each array of fragments, the KV block and the matrix that each register has of it."""

    program: Program
    tile: RowTile
    pieces: Pieces
    lse: bool
    registers: dict[str, dict[int, tuple[int, Matrix]]] = field(default_factory=dict)
    number: int = -1

    def check(self, found: Sequence[Event]) -> None:
        """Raise Unsafe where the events are not those of the Program, in its order, each whole."""
        executed = len(self.tile.blocks) - sum(event.value for event in found if event.kind == "left out")
        if executed < self.program.least_blocks:
            raise Unsafe(f"it leaves all but {executed} of {len(self.tile.blocks)} KV blocks out")
        self.events: Iterator[Event] = iter(found)
        self.advance()
        self.tile.check_q(self.load("Q", 0, Q_LOAD))
        for op, block in self.program.phases.steps(executed):
            self.operation(op, block)
        self.stores()
        if self.next is not END:
            raise self.unlike("the end")

    # --- the events, one by one --------------------------------------------------------------------------------

    def advance(self) -> None:
        """The next event that is one of an operation's."""
        for event in self.events:
            self.number, self.next = self.number + 1, event
            if event.kind != "left out":
                return
            self.tile.left_out += event.value
        self.next = END

    def take(self, wanted: Event, what: str) -> Event:
        """The next event, which must be that one; what it is of is for the caller to look at."""
        found = self.next
        if found != wanted:
            raise self.unlike(f"{wanted} of {what}")
        self.advance()
        return found

    def unlike(self, wanted: str) -> Unsafe:
        """The next event is not what it must be."""
        return Unsafe(f"operation {self.number} of rows from {self.tile.place[0]} on is {self.next}, expected {wanted}")

    # --- operations --------------------------------------------------------------------------------------------

    def operation(self, op: Operation, block: int) -> None:
        name = f"{op.statement}({block})"
        if op.kind == "issue":
            buffer = op.statement.removeprefix("load_").upper()
            self.tile.check_kv(self.load(buffer, block % self.program.buffers[op.statement], name), block)
        elif op.kind == "wait":
            self.take(Event("copies wait", value=op.outstanding), name)
        elif op.kind == "sync":
            self.take(Event("sync"), "all threads")
        elif op.kind == "keep":
            self.fragment(KEEP_Q, 0)
        elif whole(op.statement) in TILES:
            self.fragment(op.statement, block)
        elif whole(op.statement) in ACCUMULATORS:
            self.multiply(op.statement, block)
        elif op.statement == "mask":
            self.mask(block)

    def load(self, buffer: str, slot: int, what: str) -> Event:
        """All copies of a tile, as a group."""
        found = self.take(Event("load", buffer, slot), what)
        self.take(Event("commit copies"), what)
        return found

    def mask(self, block: int) -> None:
        """Where scores are hidden."""
        if self.next.kind == "mask":
            self.advance()
        else:
            self.tile.check_unmasked(block)

    def fragment(self, statement: str, block: int) -> None:
        """Each of a statement's registers gets its matrix, once."""
        buffer, load = TILES[whole(statement)]
        block = 0 if load == Q_LOAD else block
        slot = block % self.program.buffers.get(load, 1)
        name, what = f"{buffer}_local", f"{statement}({block})"
        missing = dict(self.pieces.loaded(statement))
        held = self.registers.setdefault(name, {})
        while missing:
            event = self.take(Event("fragment", buffer, slot), what)
            (registers, at, _), numbers = event.reads[0], event.place
            for start in range(0, len(numbers), FIELDS):
                row, column, transposed, apart = numbers[start : start + FIELDS]
                matrix = Matrix(row, column, bool(transposed), apart)
                wanted = missing.pop(at, None)
                if registers != name or matrix != wanted:
                    raise Unsafe(f"{what} loads {matrix} into {registers}[{at}], expected {wanted or 'no more of it'}")
                held[at] = (block, matrix)
                at += PAIR

    def multiply(self, statement: str, block: int) -> None:
        """Each of a statement's products is there once, and finds in its registers what it multiplies."""
        what, accumulators = f"{statement}({block})", ACCUMULATORS[whole(statement)]
        missing = {at: list(products) for at, products in self.pieces.multiplied(statement).items()}
        while missing:
            event = self.next
            if event.kind != "multiply" or event.name != accumulators:
                raise self.unlike(f"a product of {what}")
            self.advance()
            (a, a_at, _), (b, b_at, _) = event.reads
            products = missing.get(event.index, [])
            product = next((p for p in products if (a, a_at, b, b_at) == (*p.a[:2], *p.b[:2])), None)
            if product is None:
                raise Unsafe(
                    f"{what} multiplies {a}[{a_at}] and {b}[{b_at}] into {accumulators}[{event.index}], which it does not, "
                    "or did before"
                )
            products.remove(product)
            if not products:
                del missing[event.index]
            for name, _, matrices in product:
                self._check_held(what, name, matrices, 0 if name == BUFFERS["frag_q"] else block)

    def _check_held(self, what: str, name: str, matrices: dict[int, Matrix], block: int) -> None:
        held = self.registers.get(name, {})
        for at, matrix in matrices.items():
            if held.get(at) != (block, matrix):
                raise Unsafe(f"{what} multiplies {held.get(at, 'nothing')} of {name}[{at}], expected {block, matrix}")

    # --- behind the loop ---------------------------------------------------------------------------------------

    def stores(self) -> None:
        """The logarithms and the output of each 16 rows of all warps, from their own registers."""
        row, head, batch = self.tile.place
        of_output = self.pieces.head_dim // SIDE * OF_D
        stored = (("lse", 2),) * self.lse + (("output", of_output),)
        for kind, registers in stored:
            for i in range(self.pieces.products):
                place = (row + i * self.pieces.rows, head, batch)
                event = self.take(Event(kind, index=i * registers), f"rows from {place[0]} on")
                if event.place != place:
                    raise Unsafe(f"{kind}: it stores {event.place} as (row, head, batch), expected {place}")
