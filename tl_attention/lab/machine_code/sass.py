"""This module reads a kernel's machine code (SASS): the loops that issue products, their instructions and their waits.

On Hopper these decide the speed: exponentials that stand between the issue of a product and the wait for it are free.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tl_attention.compiler.scratch import scratch_file
from tl_attention.compiler.toolchain import packaged
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.program.asked_waits import AskedWaits

TOOLS = ("cuobjdump", "nvdisasm")
# These instructions are counted, and shown in this order. MOV includes IMAD.MOV, the same move on another pipe.
COUNTED = (
    "HGMMA",
    "HMMA",
    "LDSM",
    "LDGSTS",
    "MUFU",
    "FFMA",
    "FMUL",
    "FADD",
    "FMNMX",
    "SHFL",
    "F2FP",
    "MOV",
    "UMOV",
    "R2UR",
    "SYNCS",
    "BAR",
    "LDL",
    "STL",
)
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", re.M)
# An instruction is two such words: what the instruction does, and how long others wait for it.
WORD = re.compile(r"/\* (0x[0-9a-f]{16}) \*/")
BRANCH = re.compile(r"(?:(.+),\s*)?0x([0-9a-f]+)$")
# The instructions of wgmma and of mma.sync.
PRODUCTS = ("HGMMA", "HMMA")
EXPONENTIAL = re.compile(r"MUFU\.EX2")
PRODUCT_WAIT = re.compile(r"WARPGROUP\.DEPBAR")
# Without TRYWAIT the instruction is the second look of a wait that is under way.
BARRIER_WAIT = re.compile(r"SYNCS\.PHASECHK\..*TRYWAIT")
# Products may be serialised for these reasons, where ptxas has not said one.
UNTOLD = (
    "either registers are too few, or code between a product's issue and its wait touches the accumulator, calls or traps "
    "(ptxas says which, C7510 to C7520)"
)
# A0 announces bytes and arrives not at all.
ARRIVE = re.compile(r"SYNCS\.ARRIVE(?!\S*\.A0)")


@dataclass(frozen=True)
class Loop:
    """A Loop counts the instructions, exponentials and waits of a loop of machine code that issues products."""

    instructions: int
    counts: dict[str, int]  # instructions of the body, by kind
    exponentials: int
    # Each has, for each such instruction, the number of exponentials that stand before it in the body.
    product_waits: tuple[int, ...] = ()
    barrier_waits: tuple[int, ...] = ()  # on mbarriers
    arrives: tuple[int, ...] = ()  # at mbarriers

    @property
    def products(self) -> int:
        """Returns the number of the loop's product instructions, HGMMA and HMMA.

        wgmma has one for every 16 columns that a product sums over.
        """
        return sum(self.counts.get(name, 0) for name in PRODUCTS)

    @property
    def spills(self) -> int:
        """Returns the number of loads and stores of spilled registers."""
        return self.counts.get("LDL", 0) + self.counts.get("STL", 0)

    def __str__(self) -> str:
        counts = ", ".join(f"{self.counts[name]} {name}" for name in COUNTED if name in self.counts)
        return f"{self.instructions} instructions: {counts}{'' if self.spills else ', no spills in this loop'}"

    @property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Returns a dict from each kind of wait, and arrivals, to the numbers of exponentials before them in the body.

        What the body does not do is left out.
        """
        every = {
            "waits for products": self.product_waits,
            "waits on mbarriers": self.barrier_waits,
            "arrives": self.arrives,
        }
        return {name: places for name, places in every.items() if places}

    def places_beside(self, asked: AskedWaits | None) -> str:
        """Returns text with the numbers of exponentials before the body's waits and arrivals, and before asked waits.

        The schedule asks for the waits for products alone. A body whose number of exponentials is not that of one
        iteration is no iteration: nothing stands beside it.
        """
        parts = [f"{name} after {', '.join(map(str, places))}" for name, places in self.places.items()]
        if asked and self.product_waits and asked.exponentials == self.exponentials:
            parts[0] += f" (the schedule asks: {', '.join(map(str, asked.product_waits))})"
        return f"of {self.exponentials} exponentials: {'; '.join(parts) or 'no waits'}"


@dataclass(frozen=True)
class StaticReport:
    """A static report holds the registers, stack, shared memory and loops that a compiled kernel has."""

    registers: int  # of a thread
    stack_bytes: int  # of a thread: spills
    shared_bytes: int  # of a block
    loops: tuple[Loop, ...] = ()
    machine_code: str | None = None  # a name: sources that give the same machine code share it

    def __str__(self) -> str:
        spills = f"{self.stack_bytes} bytes of spills" if self.stack_bytes else "no spills"
        return f"{self.registers} registers, {spills}, {self.shared_bytes:,} bytes of shared memory"


def read_loops(cubin: bytes) -> tuple[Loop, ...]:
    """Disassembles a cubin, and returns its innermost loops with products in the order of the code.

    This takes about half a second.
    """
    return parse(cuobjdump(cubin, "--dump-sass"))


def code_name(text: str) -> str:
    """Returns a short hash of the machine code in a disassembly.

    Equal machine code has one name, whatever it was compiled from.
    """
    return hashlib.sha256(" ".join(WORD.findall(text)).encode()).hexdigest()[:12]


def steady(loops: Sequence[Loop]) -> Loop | None:
    """Returns the loop with most products, then fewest instructions; None if there are no loops.

    It is the loop over blocks that need no mask.
    """
    return max(loops, key=lambda loop: (loop.products, -loop.instructions), default=None)


def describe(loops: Sequence[Loop], asked: AskedWaits | None = None) -> list[str]:
    """Returns two lines of text for each loop, the steady loop first.

    `asked` is where the schedule has the waits.
    """
    first = steady(loops)
    ordered = sorted(loops, key=lambda loop: loop is not first)
    return [
        f"{'steady' if loop is first else 'other'} loop: {loop}\n    {loop.places_beside(asked)}" for loop in ordered
    ]


def check_not_serialised(loops: Sequence[Loop], because: Callable[[], str] = str) -> None:
    """Raises ScheduleRefused where a loop has more waits for products than half its product instructions.

    ptxas then gave up running products beside other code; `because` asks ptxas why. Such machine code waits after every
    HGMMA; the kernel asks for one wait for a product of several HGMMA. The warning of ptxas is no evidence: TileLang
    keeps binaries, and ptxas is silent about a binary that it does not build again.
    """
    for loop in loops:
        waits = len(loop.product_waits)
        # One of the two products has at least 4 HGMMA, for head_dim 64, so what is asked for stays below a half.
        if 2 * waits > loop.products:
            raise ScheduleRefused(
                f"ptxas serialised the products: the machine code waits {waits} times for {loop.products} HGMMA, expected "
                f"once for each product; {f'ptxas says: {why}' if (why := because()) else UNTOLD}"
            )


# --- the disassembly -------------------------------------------------------------------------------------------


def cuobjdump(cubin: bytes, option: str) -> str:
    """Returns what cuobjdump prints of a cubin with this option, or raises InputError where it fails.

    cuobjdump disassembles with the nvdisasm that it finds on the PATH.
    """
    path = os.pathsep.join([str(Path(tool("nvdisasm")).parent), os.environ.get("PATH", "")])
    with scratch_file("kernel.cubin", cubin) as file:
        done = subprocess.run(
            [tool("cuobjdump"), option, str(file)], capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
    if done.returncode:
        # cuobjdump writes files of its own beside the cubin: the disk may be full.
        said = " ".join(done.stderr.split())[:300] or "no message"
        raise InputError(f"cuobjdump {option} failed, exit code {done.returncode}: {said}")
    return done.stdout


def tool(name: str) -> str:
    """Returns cuobjdump's or nvdisasm's path, from its pip package, the PATH or CUDA's folder; raises InputError."""
    package = f"nvidia-cuda-{name}"
    for candidate in (*packaged(package, name), shutil.which(name), f"/usr/local/cuda/bin/{name}"):
        if candidate and Path(candidate).is_file():
            return str(candidate)
    raise InputError(f"{name} was not found: install the package {package}, which this project pins")


@dataclass(frozen=True)
class Instruction:
    """An Instruction is one line of machine code."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        return "MOV" if self.opcode.startswith("IMAD.MOV") else self.opcode.split(".")[0]


def parse(text: str) -> tuple[Loop, ...]:
    """Returns the innermost loops with products that a disassembly has, from its text."""
    loops: list[Loop] = []
    for function in text.split("Function : "):
        code = [Instruction(int(m[1], 16), m[2] or "", m[3], m[4]) for m in INSTRUCTION.finditer(function)]
        bodies = list(_bodies(code))
        loops += [_loop(code[n] for n in sorted(body)) for body in bodies if not any(other < body for other in bodies)]
    return tuple(loops)


def _loop(body: Iterable[Instruction]) -> Loop:
    instructions, exponentials = 0, 0
    counts: Counter[str] = Counter()
    places: dict[re.Pattern[str], list[int]] = {PRODUCT_WAIT: [], BARRIER_WAIT: [], ARRIVE: []}
    for instruction in body:
        instructions += 1
        counts[instruction.name] += 1
        exponentials += bool(EXPONENTIAL.match(instruction.opcode))
        for pattern, found in places.items():
            if pattern.match(instruction.opcode):
                found.append(exponentials)
    counted = {name: counts[name] for name in COUNTED if counts[name]}
    return Loop(instructions, counted, exponentials, *map(tuple, places.values()))


def _bodies(code: Sequence[Instruction]) -> Iterator[set[int]]:
    """Yields the natural loops with products, each as the indices of its instructions."""
    # A branch back closes a loop only where its target is on every way to the branch: the code that retries a wait
    # stands behind the kernel's end and branches back too. Such code runs rarely, and is left out of the body.
    successors = _successors(code)
    predecessors: list[list[int]] = [[] for _ in code]
    backward: dict[int, list[int]] = {}
    for source, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(source)
            if target <= source:
                backward.setdefault(target, []).append(source)
    products = [n for n, instruction in enumerate(code) if instruction.name in PRODUCTS]
    for header, sources in backward.items():
        if not any(header <= n <= max(sources) for n in products):
            continue
        elsewhere = _reachable([0], successors, without=header)
        closing = [source for source in sources if source not in elsewhere]
        if closing:
            body = _reachable(closing, predecessors, without=header) | {header}
            body = {n for n in body if header <= n <= max(closing)}
            if not body.isdisjoint(products):
                yield body


def _successors(code: Sequence[Instruction]) -> list[list[int]]:
    index = {instruction.address: n for n, instruction in enumerate(code)}
    successors = []
    for n, instruction in enumerate(code):
        branch = BRANCH.match(instruction.operands) if instruction.name == "BRA" else None
        always = not instruction.predicate and not (branch and branch[1])
        ends = always and (branch or instruction.name in ("EXIT", "RET", "BRX"))
        target = index.get(int(branch[2], 16)) if branch else None
        onward = [] if ends or n + 1 == len(code) else [n + 1]
        successors.append(onward + ([target] if target is not None else []))
    return successors


def _reachable(starts: Iterable[int], edges: Sequence[Sequence[int]], without: int) -> set[int]:
    seen = {start for start in starts if start != without}
    pending = list(seen)
    while pending:
        for n in edges[pending.pop()]:
            if n != without and n not in seen:
                seen.add(n)
                pending.append(n)
    return seen
