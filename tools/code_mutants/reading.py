"""Asks the proof about generated code. Only this module knows how the proof is called."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tl_attention.lowering.registry import lowering_of
from tl_attention.program.derivation import derive
from tl_attention.proof.code import text
from tl_attention.proof.code.calls import CALLS
from tl_attention.proof.code.verdict import GeneratedCode as Code
from tl_attention.proof.code.verdict import Verdict
from tl_attention.schedule.schedule import Schedule

__all__ = [
    "BODY",
    "NUMBERS",
    "Code",
    "Verdict",
    "is_numbers",
    "of_numbers",
    "prove",
    "read",
    "reads_of_launch",
    "synchronises",
]

BODY = "__launch_bounds__"
NUMBERS = "numbers: "


_known: dict[tuple[object, ...], Verdict] = {}


def prove(schedule: Schedule, code: Code) -> Verdict:
    """Returns the proof's verdict. Raises ScheduleRefused where the proof refuses the code."""
    return lowering_of(schedule).check_generated(schedule, derive(schedule), code)


def read(schedule: Schedule, code: Code) -> Verdict:
    """Returns the proof's verdict, without a new proof if all lines that are read are as in the last accepted code."""
    key = (schedule.label, code.variant, code.host_source, _read_lines(code.source))
    if key not in _known or key[-1] is None:
        verdict = prove(schedule, code)
        _known.clear()
        _known[key] = verdict
    return _known[key]


def _read_lines(source: str) -> tuple[str, ...] | None:
    """Returns the lines that are read, and the kinds of the other lines; None where a line is of no known kind."""
    try:
        kinds = text.read(source, CALLS).kinds
    except SyntaxError:
        return None
    told = (kinds.get(number, "") for number in range(source.count("\n") + 1))
    return tuple(kind if is_numbers(kind) else line for kind, line in zip(told, source.split("\n")))


# Kinds that are read, and order nothing between threads.
SILENT = {"control", "integer", "allocation", "descriptor", "prefetch"}
# Lines of the host's code that say how the kernel is launched: sizes, addresses, arguments with their headers, calls.
LAUNCH = re.compile(
    r"  int32_t \w+ = \(\(int32_t\)|  void\* \w+ = \(\(\(DLTensor|  void\* \w+_desc = |  TL_ALIGN\(128\)"
    r"|.*stack_ffi_any\)\[|.*TVMFFIFunctionCall\("
)


def is_numbers(kind: str) -> bool:
    """Says whether a whole line of this kind is left to the numbers."""
    return kind.startswith(NUMBERS)


def of_numbers(kind: str) -> str:
    """Returns what of a line of this kind is left to the numbers: "numbers: layout" of "load, numbers: layout", else ""."""
    return kind[kind.index(NUMBERS) :] if NUMBERS in kind else ""


def synchronises(kind: str) -> bool:
    """Says whether a line of this kind loads, multiplies, stores or orders threads."""
    return bool(kind) and not is_numbers(kind) and kind.partition(",")[0] not in SILENT


def reads_of_launch(lines: Sequence[str]) -> list[int]:
    """Returns the numbers of the lines of the host's code that are read."""
    return [number for number, line in enumerate(lines) if LAUNCH.match(line)]
