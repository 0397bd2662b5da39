"""Proves the generated mma.sync kernel against the Program: the same operations in the same order, each of all its parts.

Of registers more is read than of other lowerings: which matrix of which KV block each register of a fragment has, and that
each product finds there what it multiplies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from tl_attention.lowering.device_code import STORE, STORE_LSE, STRIDED_STORE
from tl_attention.lowering.mma_sync.arguments import BUFFERS
from tl_attention.lowering.mma_sync.compared import Comparison
from tl_attention.lowering.mma_sync.device_code import GREW
from tl_attention.lowering.mma_sync.pieces import Pieces
from tl_attention.program.program import Program
from tl_attention.proof.events import Event
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.row_tile import RowTile
from tl_attention.proof.generated.row_tile_proof import RowTileProof
from tl_attention.proof.generated.tiles import Product, Tile
from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
from tl_attention.schedule.schedule import Schedule

# Registers whose content is known: nothing but an ldmatrix may write them.
OF_FRAGMENTS = re.compile(rf"\b(?:{'|'.join(BUFFERS.values())})\b")
OTHERS = "numbers: arithmetic"
BYTES = {"acc_s": 4, "acc_o": 4}


class MmaSyncProof(RowTileProof):
    """The proof of one kernel."""

    @property
    def longest_first(self) -> bool:
        return self.code.variant.mask.grows

    @property
    def prelude(self) -> str:
        store = STRIDED_STORE if self.code.variant.strided else STORE
        return store + GREW * (self.schedule.softmax.rescale_threshold > 0) + STORE_LSE * self.lse

    @cached_property
    def pieces(self) -> Pieces:
        """What its statements do to registers."""
        return Pieces(self.schedule, self.code.variant.tile_dim)

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        schedule, columns, swizzled = self.schedule, self.code.variant.tile_dim, self.schedule.kernel.swizzle
        rings = {name.removeprefix("load_").upper(): count for name, count in self.program.buffers.items()}
        shapes = {"Q": (schedule.block_M, 1), **{name: (schedule.block_N, count) for name, count in rings.items()}}
        return {name: Tile(name, rows, columns, slots, swizzled) for name, (rows, slots) in shapes.items()}

    @cached_property
    def products(self) -> dict[str, Product]:
        head_dim, block_N, tiles = self.code.variant.tile_dim, self.schedule.block_N, self.tiles
        return {
            "acc_s": Product("acc_s", "Q_local", tiles["K"], block_N, head_dim, False),
            "acc_o": Product("acc_o", "acc_s_cast", tiles["V"], head_dim, block_N, True),
        }

    def check_code(self) -> None:
        declared = self.kernel.declared
        if declared.barriers or declared.numbers:
            raise Unsafe(f"it has mbarriers or numbers in shared memory: {declared.barriers} {declared.numbers}")
        for name, elements in self.pieces.declared.items():
            found, wanted = declared.registers.get(name), elements * BYTES.get(name, 2)
            if found != wanted:
                raise Unsafe(f"{name} has {found or 'no'} bytes of a thread's registers, expected {wanted}")
        lines = self.code.source.splitlines()
        for line, kind in self.kernel.kinds.items():
            if kind == OTHERS and OF_FRAGMENTS.search(lines[line]):
                raise Unsafe(f"line {line + 1} computes on a fragment: {lines[line].strip()[:80]!r}")

    def check_tile(self, tile: RowTile, found: Sequence[Event]) -> Iterable[Event]:
        Comparison(self.program, tile, self.pieces, self.lse).check(found)
        return found


def check(schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
    """The verdict on a kernel. Raises ScheduleRefused."""
    return MmaSyncProof(schedule, program, code).verdict()
