"""How the proof is asked about generated code: the only place that knows how it is called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.variant import Parameter, Variant
from tl_attention.program.derivation import derive
from tl_attention.proof.generated.calls import CALLS
from tl_attention.proof.generated.host_plan import parse_host_source
from tl_attention.proof.generated.reader import ASSIGNED, FOR, IF, SHARED
from tl_attention.proof.generated.verdict import GeneratedCode
from tl_attention.schedule.schedule import Schedule

BODY = "__launch_bounds__"
NUMBERS = "numbers: "


@dataclass(frozen=True)
class Code:
    """What the proof reads: device CUDA and host C, whole."""

    source: str
    host_source: str
    variant: Variant
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Verdict:
    """Of code that is accepted. `kinds` has what every line of the source is read as, "" outside of the body."""

    kinds: tuple[str, ...]
    unreached: tuple[int, ...]
    digest: str


def read(schedule: Schedule, code: Code) -> Verdict:
    """The proof's verdict. Raises InputError, or ScheduleRefused, where it refuses the code."""
    plan = parse_host_source(code.host_source)
    given = GeneratedCode(code.source, plan.shared_bytes, code.variant, code.parameters)
    lowering_of(schedule).check_generated(schedule, derive(schedule), given)
    return Verdict(_kinds(code.source), (), "")


def _kinds(source: str) -> tuple[str, ...]:
    lines = source.splitlines()
    start = max(number for number, line in enumerate(lines) if BODY in line)
    return tuple("" if number < start else _kind(line.strip()) for number, line in enumerate(lines))


@cache
def _kind(line: str) -> str:
    if BODY in line:
        return "signature"
    for name, pattern in {"loop": FOR, "branch": IF, "buffer": SHARED}.items():
        if pattern.match(line):
            return name
    if line in ("{", "}", "} else {", "while (1) {") or line.endswith("{ break; }"):
        return "block"
    call = next((kind for kind, pattern, _ in CALLS if pattern.search(line)), "")
    if call:
        return call
    integer = re.match(r"int \w+( = .+)?;$", line) or (ASSIGNED.match(line) and "acc" not in line and "[" not in line)
    return "integer" if integer and "float" not in line and "__" not in line else NUMBERS + "other"


# Kinds that are read, and order nothing between threads.
SILENT = {"signature", "loop", "branch", "block", "buffer", "integer", "descriptor", "harmless"}
# Lines of the host's code that say how the kernel is launched: sizes, addresses, arguments with their headers, calls.
LAUNCH = re.compile(
    r"  int32_t \w+ = \(\(int32_t\)|  void\* \w+ = \(\(\(DLTensor|  void\* \w+_desc = |  TL_ALIGN\(128\)"
    r"|.*stack_ffi_any\)\[|.*TVMFFIFunctionCall\("
)


def is_numbers(kind: str) -> bool:
    """Whether a line of this kind is left to the numbers, all of it."""
    return kind.startswith(NUMBERS)


def of_numbers(kind: str) -> str:
    """What of a line of this kind is left to the numbers: "numbers: layout" of "load, numbers: layout", else ""."""
    return kind[kind.index(NUMBERS) :] if NUMBERS in kind else ""


def synchronises(kind: str) -> bool:
    """Whether a line of this kind loads, multiplies, stores or orders threads."""
    return bool(kind) and not is_numbers(kind) and kind not in SILENT


def reads_of_launch(lines: Sequence[str]) -> list[int]:
    """The lines of the host's code that are read."""
    return [number for number, line in enumerate(lines) if LAUNCH.match(line)]
