"""Asks the proof about generated code. Only this module knows how the proof is called."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tl_attention.codeproof.registry import check_generated
from tl_attention.codeproof.verdict import GeneratedCode as Code
from tl_attention.codeproof.verdict import Verdict
from tl_attention.program.derivation import derive
from tl_attention.schedule.schedule import Schedule

__all__ = ["BODY", "NUMBERS", "Code", "Verdict", "is_numbers", "numbers_in", "prove", "reads_of_launch", "synchronises"]

BODY = "__launch_bounds__"
NUMBERS = "numbers: "
# Kinds that are read, and order nothing between threads.
SILENT = {"control", "integer", "allocation", "descriptor", "prefetch"}
# A line of the host's plan has a name or a value, or a bracket alone.
LAUNCH = re.compile(r"\w")


def prove(schedule: Schedule, code: Code) -> Verdict:
    """Returns the proof's verdict. Raises ScheduleRefused where the proof refuses the code."""
    return check_generated(schedule, derive(schedule), code)


def is_numbers(kind: str) -> bool:
    """Says whether a whole line of this kind is left to the numbers."""
    return kind.startswith(NUMBERS)


def numbers_in(kind: str) -> str:
    """Returns what a line of this kind leaves to the numbers: "numbers: layout" of "load, numbers: layout", else ""."""
    return kind[kind.index(NUMBERS) :] if NUMBERS in kind else ""


def synchronises(kind: str) -> bool:
    """Says whether a line of this kind loads, multiplies, stores or orders threads."""
    return bool(kind) and not is_numbers(kind) and kind.partition(",")[0] not in SILENT


def reads_of_launch(lines: Sequence[str]) -> list[int]:
    """Returns the numbers of the lines of the host's plan that say something."""
    return [number for number, line in enumerate(lines) if LAUNCH.search(line)]
