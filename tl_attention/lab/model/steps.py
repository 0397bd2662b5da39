"""Steps are a warp's instructions as the model runs them: what each takes of the SM, and what it waits for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tl_attention.lab.machine_code import sass
from tl_attention.lab.model.instructions import ScheduledInstruction, loops, main_end
from tl_attention.lab.model.machine import Machine

WGMMA = re.compile(r"HGMMA\.64x(\d+)x16")
# What a step does beside issuing. `wait` and `arrive` are at an mbarrier, `sync` and `signal` at a named barrier.
PRODUCT, PRODUCTS_WAIT, COMMIT, COPIES_WAIT = "product", "products wait", "commit", "copies wait"
WAIT, ARRIVE, SYNC, SIGNAL = "wait", "arrive", "sync", "signal"
KINDS = {
    PRODUCT: WGMMA,
    PRODUCTS_WAIT: sass.PRODUCT_WAIT,
    COMMIT: re.compile(r"LDGDEPBAR"),
    COPIES_WAIT: re.compile(r"DEPBAR"),
    WAIT: sass.BARRIER_WAIT,
    ARRIVE: sass.ARRIVE,
    SYNC: re.compile(r"BAR\.SYNC"),
    SIGNAL: re.compile(r"BAR\.ARV"),
}
# The pipes of a quarter, by the names of the instructions that they execute. Other instructions only issue.
ALU = (
    "FMNMX", "FSETP", "FSEL", "F2FP", "I2FP", "MOV", "SEL", "PRMT", "SHF", "LOP3", "LEA", "IADD3", "IABS", "ISETP",
    "PLOP3", "VIADD", "VIMNMX", "P2R", "R2P",
)  # fmt: skip
PIPES = {
    **dict.fromkeys(("FFMA", "FMUL", "FADD"), "fma"),
    "IMAD": "imad",
    **dict.fromkeys(ALU, "alu"),
    **dict.fromkeys(("MUFU", "F2I", "I2F", "FRND"), "mufu"),
    "SHFL": "shuffle",
    **dict.fromkeys(("LDS", "LDSM", "STS", "LDL", "STL", "LDG", "STG", "LDGSTS"), "shared"),
    "HMMA": "mma_sync",
    **dict.fromkeys(("R2UR", "ELECT"), "uniform"),
}
UNIFORM = re.compile(r"U(?!TMA|CGA)")
LATENCIES = {
    **dict.fromkeys(("MUFU", "F2I", "I2F", "FRND"), "mufu_latency"),
    "SHFL": "shuffle_latency",
    **dict.fromkeys(("LDS", "LDSM", "LDL"), "shared_latency"),
    "LDG": "global_latency",
}


class WarpStep(NamedTuple):
    """A WarpStep is an instruction of a warp with its costs in cycles."""

    kind: str
    instruction: ScheduledInstruction
    pipe: str  # of its quarter
    busy: float  # how long it takes the pipe
    latency: float  # until its result is there
    stall: int  # until the warp's next instruction at the earliest
    waits: tuple[int, ...]  # scoreboards that it waits for
    write: int  # the scoreboard that it sets until its result is there, -1 for none
    read: int  # the scoreboard that it sets until its operands have been read, -1 for none
    number: int = 0  # a product's columns, or how many groups of products or copies a wait leaves in flight
    closes: bool = False  # a group of products ends with this one

    @property
    def columns(self) -> int:
        """Returns the columns of a product, in instructions by wgmma or mma.sync; 0 for another step."""
        return self.number if self.kind == PRODUCT else 8 * (self.instruction.name == "HMMA")


def step(instruction: ScheduledInstruction, machine: Machine) -> WarpStep:
    """Returns an instruction as a step, with the machine's costs."""
    opcode, name, operands = instruction.opcode, instruction.name, instruction.operands
    kind = next((kind for kind, pattern in KINDS.items() if pattern.match(opcode)), "")
    number = 0
    if kind == PRODUCT:
        number = int(WGMMA.match(opcode)[1])  # type: ignore[index]
    elif kind in (PRODUCTS_WAIT, COPIES_WAIT):
        number = int(operands.split(",")[-1], 16)
    pipe = PIPES.get(name) or ("uniform" if UNIFORM.match(opcode) else "")
    return WarpStep(
        kind,
        instruction,
        pipe,
        getattr(machine, pipe) if pipe else 0.0,
        getattr(machine, LATENCIES.get(name, "other_latency")),
        instruction.stall or 1,
        instruction.waits,
        -1 if instruction.write is None else instruction.write,
        -1 if instruction.read is None else instruction.read,
        number,
        "gsb0" in operands,
    )


class WarpMark(NamedTuple):
    """A WarpMark stands among a warp's steps, where the time at which the warp gets there is noted."""

    label: tuple[object, ...]


@dataclass(frozen=True)
class TileCode:
    """A TileCode is the code of a tile as a consumer runs it."""

    # Straight code, a loop over KV blocks, straight code and so on, with straight code at the end. Where there are two
    # loops, the first is for KV blocks that need a mask.
    sections: tuple[tuple[WarpStep, ...], ...]
    again: bool  # a thread block runs the code for one tile after another

    @property
    def loops(self) -> int:
        """Returns how many loops a tile has: none where sizes are fixed and so small that all code is straight."""
        return len(self.sections) // 2

    @property
    def steady(self) -> tuple[WarpStep, ...]:
        """Returns the steps of the loop without a mask, the last one. There must be a loop."""
        return self.sections[-2]

    @property
    def outside(self) -> int:
        """Returns how many KV blocks' products stand in straight code."""
        return round(sum(map(columns, self.sections[::2])) / columns(self.steady))

    def trips(self, blocks: int, masked: int) -> tuple[int, ...]:
        """Returns how often each loop runs in a tile of `blocks` KV blocks, `masked` of which need a mask."""
        loops = self.loops
        left = max(blocks - self.outside, 0)
        # The straight code before the loops has the first blocks, which are masked.
        first = min(max(masked - self.outside, 0), left) if loops > 1 else 0
        return (*(first,) * (loops > 1), *(0,) * (loops - 2), left - first)

    def steps(self, lengths: Sequence[tuple[int, int]]) -> Iterator[WarpStep | WarpMark]:
        """Yields the steps of tiles with so many (KV blocks, masked ones) each.

        Marks tell where tile n begins, (n,), and where the k-th iteration of its steady loop does, (n, k).
        """
        for tile, (blocks, masked) in enumerate(lengths):
            yield WarpMark((tile,))
            trips = self.trips(blocks, masked)
            for n, section in enumerate(self.sections):
                if n % 2 == 0:
                    yield from section
                    continue
                for k in range(trips[n // 2]):
                    if section is self.steady:
                        yield WarpMark((tile, k))
                    yield from section
        yield WarpMark((len(lengths),))


def columns(steps: Sequence[WarpStep]) -> int:
    """Returns the columns of all products among the steps."""
    return sum(step.columns for step in steps)


def tile_code(code: Sequence[ScheduledInstruction], machine: Machine) -> TileCode:
    """Returns the code of a consumer's tile: what the outermost loop with products encloses, or else all its code."""
    found = loops(code)
    inner = [loop for loop in found if not any(loop.encloses(other) for other in found)]
    outer = [loop for loop in found if loop not in inner]
    first, end = (outer[0].first, outer[0].end) if outer else _consumer(code)
    bounds = [first, *(at for loop in inner for at in (loop.first, loop.end)), end]
    sections = (tuple(step(i, machine) for i in code[a:b]) for a, b in pairwise(bounds))
    return TileCode(tuple(sections), bool(outer))


def _consumer(code: Sequence[ScheduledInstruction]) -> tuple[int, int]:
    """Returns the numbers of the instructions with which a consumer's code begins and ends."""
    # From where it takes registers to where a producer gives its own away; without one, all up to the last exit.
    at = {i.opcode.split(".")[1]: n for n, i in enumerate(code) if i.name == "USETMAXREG"}
    return (at["TRY_ALLOC"] + 1, at["DEALLOC"]) if {"TRY_ALLOC", "DEALLOC"} <= set(at) else (0, main_end(code))
