"""This module proves the generated mma.sync kernel against the Program: all operations, with all parts, in order.

The proof reads more of registers than other lowerings' proofs: which matrix of which KV block each register of a
fragment has, and that each product finds there what it multiplies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tl_attention.codeproof.mma_sync.fragment_layout import KEEP_Q, OF_D, FragmentLayout
from tl_attention.codeproof.run.stream import fragment, multiply
from tl_attention.codeproof.tiles.row_tile_proof import RowTileProof
from tl_attention.codeproof.tiles.row_tiles import RowTile
from tl_attention.codeproof.tiles.tiles import SIDE, Matrix, Tile
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.kernels.mma_sync.dialect import Q_LOAD
from tl_attention.kernels.mma_sync.resources import BUFFERS
from tl_attention.program.events import AnyOrder, Event, Expected, Place, Repeat
from tl_attention.program.program import Operation
from tl_attention.schedule.loop.table import whole

# The buffer that a statement's fragments are of, and their load.
FRAGMENTS = {"frag_q": ("Q", Q_LOAD), "frag_k": ("K", "load_k"), "frag_v": ("V", "load_v"), KEEP_Q: ("Q", Q_LOAD)}
ACCUMULATORS = {"mma0": "acc_s", "mma1": "acc_o"}
# Arrays with a known content: nothing but an ldmatrix may write them.
OF_FRAGMENTS = re.compile(rf"\b(?:{'|'.join(BUFFERS.values())})\b")
OTHERS = "numbers: arithmetic"
BYTES = {"acc_s": 4, "acc_o": 4}


class MmaSyncProof(RowTileProof):
    """A MmaSyncProof proves that one generated mma.sync kernel does what its Program says, down to its registers."""

    @property
    def longest_first(self) -> bool:
        return self.code.variant.mask.grows

    @cached_property
    def pieces(self) -> FragmentLayout:
        """Returns the FragmentLayout, which maps statements to the registers that they load and multiply."""
        return FragmentLayout(self.schedule, self.code.variant.tile_dim)

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        schedule, columns, swizzled = self.schedule, self.code.variant.tile_dim, self.schedule.kernel.swizzle
        rings = {name.removeprefix("load_").upper(): count for name, count in self.program.buffers.items()}
        shapes = {"Q": (schedule.block_M, 1), **{name: (schedule.block_N, count) for name, count in rings.items()}}
        return {name: Tile(name, rows, columns, slots, swizzled) for name, (rows, slots) in shapes.items()}

    @property
    def operands(self) -> tuple[Tile | str, Tile | str]:
        return "Q_local", "acc_s_cast"

    def check_code(self) -> None:
        declared = self.kernel.declared
        for name, elements in self.pieces.declared.items():
            found, wanted = declared.registers.get(name), elements * BYTES.get(name, 2)
            if found != wanted:
                raise Unsafe(f"{name} has {found or 'no'} bytes of a thread's registers, expected {wanted}")
        for line, kind in self.kernel.kinds.items():
            if kind == OTHERS and OF_FRAGMENTS.search(self.kernel.lines[line]):
                raise Unsafe(f"line {line + 1} computes on a fragment: {self.kernel.lines[line].strip()[:80]!r}")
        self._check_registers()

    # --- what a block does -------------------------------------------------------------------------------------

    def expected(self, tile: RowTile, blocks: Any) -> Iterator[Expected | Repeat]:
        yield from self._load("Q", 0, tile.copied_rows("Q"))
        yield from self.program.phases.events(blocks, lambda block, op: self._operation(op, block, tile))
        yield from self._stores(tile)

    def _operation(self, op: Operation, block: Any, tile: RowTile) -> Iterator[Any]:
        name = whole(op.statement)
        if op.kind == "issue":
            buffer = name.removeprefix("load_").upper()
            yield from self._load(buffer, block % self.program.buffers[op.statement], tile.copied_rows(buffer, block))
        elif op.kind == "wait":
            yield Event("copies wait", value=op.outstanding)
        elif op.kind == "sync":
            yield Event("sync")
        elif op.kind == "keep" or name in FRAGMENTS:
            yield self._fragments(KEEP_Q if op.kind == "keep" else op.statement, block)
        elif name in ACCUMULATORS:
            yield self._products[op.statement]
        elif name == "mask":
            yield tile.mask(block, 0, self.rows)

    def _load(self, buffer: str, slot: int, place: Place) -> Iterator[Event]:
        """Yields the two events of a tile's load, its copies to the buffer's slot and the commit of their group."""
        yield from (Event("load", buffer, slot, place=place), Event("commit copies"))

    def _fragments(self, statement: str, block: Any) -> AnyOrder:
        """Returns the loads of a statement's fragments, in any order."""
        buffer, load = FRAGMENTS[whole(statement)]
        slot = 0 if load == Q_LOAD else block % self.program.buffers[load]
        if (statement, slot) not in self._loaded:
            name, matrices = f"{buffer}_local", self.pieces.loaded(statement)
            events = frozenset(fragment(buffer, slot, name, at, matrix) for at, matrix in matrices.items())
            self._loaded[statement, slot] = AnyOrder(events)
        return self._loaded[statement, slot]

    @cached_property
    def _loaded(self) -> dict[tuple[str, Any], AnyOrder]:
        """Returns the cache of the fragment loads that were asked for, by (statement, slot)."""
        return {}

    @cached_property
    def _products(self) -> dict[str, AnyOrder]:
        """Returns the products that each statement must run, each once and in any order, by the statement's name."""
        return {
            statement: AnyOrder(
                frozenset(
                    multiply(ACCUMULATORS[whole(statement)], at, product.a[:2], product.b[:2])
                    for at, products in self.pieces.multiplied(statement).items()
                    for product in products
                )
            )
            for statement in self.pieces.fragments.chunks
            if whole(statement) in ACCUMULATORS
        }

    def _check_registers(self) -> None:
        """Raises Unsafe unless each statement finds each matrix that it multiplies, of its KV block, in registers."""
        # In the Program's order, with loops so long that they repeat.
        for blocks in range(self.program.least_blocks, 2 * self.program.span):
            registers: dict[tuple[str, int], tuple[int, Matrix]] = {}
            for op, block in self.program.phases.steps(blocks):
                statement = KEEP_Q if op.kind == "keep" else op.statement
                if whole(statement) in FRAGMENTS:
                    buffer, load = FRAGMENTS[whole(statement)]
                    of = 0 if load == Q_LOAD else block
                    registers |= {
                        (f"{buffer}_local", at): (of, matrix) for at, matrix in self.pieces.loaded(statement).items()
                    }
                elif whole(statement) in ACCUMULATORS and op.kind != "sync":
                    for (name, at), matrix in self.pieces.needed(statement).items():
                        wanted = 0 if name == BUFFERS["frag_q"] else block, matrix
                        if (held := registers.get((name, at), "nothing")) != wanted:
                            raise Unsafe(f"{statement}({block}) multiplies {held} of {name}[{at}], expected {wanted}")

    def _stores(self, tile: RowTile) -> Iterator[Event]:
        """Yields the events that store a tile's LSE, if it has one, then its output; each stores all warps' 16 rows."""
        of_output = self.pieces.head_dim // SIDE * OF_D
        for kind, registers in (("lse", 2),) * self.lse + (("output", of_output),):
            for i in range(self.pieces.products):
                yield Event(kind, index=i * registers, place=tile.stored_rows(kind, i * self.pieces.rows))
