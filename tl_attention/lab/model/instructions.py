"""This module reads a kernel's machine code with what each instruction tells the scheduler of its warp.

On Hopper an instruction is 128 bits, and 21 of the upper word are for the warp scheduler: the cycles until the warp's
next instruction, and the scoreboards that the instruction sets and waits for. NVIDIA documents none of this. The fields
are those of Volta, in Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tl_attention.lab.machine_code import sass

LINE = re.compile(sass.INSTRUCTION.pattern + rf"\s+{sass.WORD.pattern}\s*\n\s+{sass.WORD.pattern}", re.M)
TARGET = re.compile(r"0x([0-9a-f]+)$")
# Where the scheduler's bits begin in the upper word, and the scoreboards of a warp; number 7 is none of these.
CONTROL, SCOREBOARDS = 41, 6


@dataclass(frozen=True)
class ScheduledInstruction(sass.Instruction):
    """A ScheduledInstruction is one line of machine code, with its stall cycles and scoreboards."""

    stall: int  # cycles until the warp's next instruction may issue
    write: int | None  # the scoreboard that is set until the result is there
    read: int | None  # the one that is set until the operands have been read
    waits: tuple[int, ...]  # scoreboards that must be clear before the instruction issues

    @cached_property
    def name(self) -> str:
        """Returns the opcode without its modifiers."""
        return self.opcode.split(".")[0]

    @property
    def target(self) -> int | None:
        """Returns the address that a branch goes to, None for what is no branch or has no fixed target."""
        found = TARGET.search(self.operands) if self.name == "BRA" else None
        return int(found[1], 16) if found else None


@dataclass(frozen=True)
class LoopRange:
    """A LoopRange is a range of the code's instructions that a branch at its end runs again."""

    first: int
    end: int

    def encloses(self, other: LoopRange) -> bool:
        """Says whether the other loop is inside this one."""
        return self != other and self.first <= other.first and other.end <= self.end


def read(disassembly: str) -> tuple[ScheduledInstruction, ...]:
    """Returns the instructions of a disassembly with one kernel, in the order of their addresses."""
    return tuple(_instruction(found) for found in LINE.finditer(disassembly))


def _instruction(found: re.Match[str]) -> ScheduledInstruction:
    control = int(found[6], 16) >> CONTROL
    write, read_by = control >> 5 & 7, control >> 8 & 7
    return ScheduledInstruction(
        int(found[1], 16),
        found[2] or "",
        found[3],
        found[4],
        control & 15,
        write if write < SCOREBOARDS else None,
        read_by if read_by < SCOREBOARDS else None,
        tuple(n for n in range(SCOREBOARDS) if control >> 11 >> n & 1),
    )


def main_end(code: Sequence[ScheduledInstruction]) -> int:
    """Returns the index behind the kernel's last exit. What follows are second looks of waits, which branch back."""
    return max(n for n, instruction in enumerate(code) if instruction.name == "EXIT") + 1


def loops(code: Sequence[ScheduledInstruction]) -> list[LoopRange]:
    """Returns the loops that hold products, by their first instruction. Loops inside others come after these."""
    index = {instruction.address: n for n, instruction in enumerate(code)}
    ends: dict[int, int] = {}
    for n, instruction in enumerate(code[: main_end(code)]):
        target = instruction.target
        if target is not None and target <= instruction.address:
            ends[index[target]] = n + 1
    found = [LoopRange(first, end) for first, end in sorted(ends.items())]
    return [loop for loop in found if any(i.name in sass.PRODUCTS for i in code[loop.first : loop.end])]
