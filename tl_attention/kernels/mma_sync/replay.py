"""This module proves that the waits and barriers of a Program for mma.sync suffice, whichever code runs the Program."""

from __future__ import annotations

from collections.abc import Iterator

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.mma_sync.dialect import Q_LOAD
from tl_attention.program.program import Program, Step


class _Slot:
    """A _Slot is the state of one tile in shared memory between its copy and its last reader."""

    def __init__(self, block: int):
        self.block = block
        # Whether the tile's copies have arrived, all threads see them, and a warp may still read them.
        self.arrived = self.seen = self.being_read = False


def prove(program: Program) -> None:
    """Raises ScheduleRefused if, at some number of blocks, a read or a copy lacks a wait or barrier that it needs."""
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
    """Returns a ScheduleRefused with this message, about what goes wrong between the threads of a block."""
    return ScheduleRefused(words)
