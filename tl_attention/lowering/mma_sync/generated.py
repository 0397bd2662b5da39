"""Proves the generated mma.sync kernel against the Program: the same operations in the same order, each of all its parts.

Of registers more is read than of other lowerings: which matrix of which KV block each register of a fragment has, and that
each product finds there what it multiplies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from tl_attention.errors import ScheduleRefused
from tl_attention.lowering.device_code import STORE, STORE_LSE, STRIDED_STORE
from tl_attention.lowering.mma_sync.compared import Comparison
from tl_attention.lowering.mma_sync.dialect import Q_LOAD
from tl_attention.lowering.mma_sync.kernel import GREW
from tl_attention.lowering.mma_sync.pieces import Pieces
from tl_attention.lowering.mma_sync.resources import BUFFERS
from tl_attention.program.program import Program, Step
from tl_attention.proof.events import Event
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.row_tile import RowTile
from tl_attention.proof.generated.row_tile_proof import RowTileProof
from tl_attention.proof.generated.tiles import Product, Tile
from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
from tl_attention.schedule.schedule import Schedule


class _Slot:
    """A tile in shared memory: of which block, whether its copies have arrived, are seen by all, and who may read it."""

    def __init__(self, block: int):
        self.block = block
        self.arrived = self.seen = self.being_read = False


def prove(program: Program) -> None:
    """Raise ScheduleRefused with the read, or the copy, that is not safe, at whichever number of blocks."""
    for blocks in range(program.least_blocks, program.least_blocks + 2 * program.span + 3):
        _Replay(program).run(program.phases.steps(blocks))


class _Replay:
    def __init__(self, program: Program):
        self.program, self.table = program, program.table
        self.slots: dict[tuple[str, int], _Slot] = {}
        self.groups: list[_Slot] = []
        # Whether Q's fragments are in registers, for all blocks.
        self.kept = False
        self.load(Q_LOAD, 0, 1)

    def run(self, steps: Iterator[Step]) -> None:
        for op, block in steps:
            if op.kind == "issue":
                self.load(op.statement, block, self.program.buffers[op.statement])
            elif op.kind == "wait":
                for slot in self.groups[: max(0, len(self.groups) - op.outstanding)]:
                    slot.arrived = True
            elif op.kind == "sync":
                for slot in self.slots.values():
                    slot.seen, slot.being_read = slot.arrived, False
            elif op.kind == "keep":
                self.read(op.kind, 0, Q_LOAD, 0, 1)
                self.kept = True
            elif op.kind == "run":
                self.reads(op.statement, block)

    def load(self, load: str, block: int, buffers: int) -> None:
        old = self.slots.get((load, block % buffers))
        if old and old.being_read:
            raise refused(f"{load}({block}) copies over what a warp may still read of block {old.block}")
        if old and not old.arrived:
            raise refused(f"{load}({block}) copies to where the copies of block {old.block} may still arrive")
        self.slots[load, block % buffers] = slot = _Slot(block)
        self.groups.append(slot)

    def reads(self, statement: str, block: int) -> None:
        for load in self.table.loads_of(statement):
            self.read(statement, block, load, block, self.program.buffers[load])
        if reads := self.table.inputs.intersection(self.table.by_name[statement].reads):
            if "Q_shared" in reads:
                self.read(statement, block, Q_LOAD, 0, 1)
            elif not self.kept:
                raise refused(f"{statement}({block}) reads Q in registers, which are not loaded yet")

    def read(self, statement: str, block: int, load: str, of_block: int, buffers: int) -> None:
        slot = self.slots.get((load, of_block % buffers))
        what = f"{statement}({block}) reads what {load}({of_block})"
        if slot is None or slot.block != of_block:
            raise refused(f"{what} has not copied")
        if not slot.arrived:
            raise refused(f"{what} copies, with no wait between")
        if not slot.seen:
            raise refused(f"{what} copied, with no barrier of all threads behind the wait")
        slot.being_read = True


def refused(words: str) -> ScheduleRefused:
    """What goes wrong between the threads of a block."""
    return ScheduleRefused(words)


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
