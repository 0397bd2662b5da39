"""A fault put into the generated code of a shipped kernel, as text, and that the proof refuses it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.kernels import KERNELS, Kernel
from code_mutants.reading import prove
from once import lowered

from tl_attention.errors import InputError, ScheduleRefused

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Fault:
    """`edits` are patterns, each of which matches exactly once, with what stands in their place; `words` the reason.

    They are of the device's code, or of the host's.
    """

    kernel: str
    edits: Edits
    words: str = ""
    host: bool = False


def fault(kernel: str, pattern: str, replacement: str = "", words: str = "", host: bool = False) -> Fault:
    return Fault(kernel, ((pattern, replacement),), words, host)


def replaced(text: str, edits: Edits) -> str:
    """The text with each pattern replaced, which must be in it exactly once."""
    for pattern, replacement in edits:
        text, found = re.subn(pattern, replacement, text)
        assert found == 1, f"{pattern!r} matches {found} times, expected once"
    return text


def refused(case: Fault, kernels: Mapping[str, Kernel] = KERNELS) -> None:
    """Holds if the kernel as it is passes, and with the fault is refused."""
    kernel = kernels[case.kernel]
    code = lowered(kernel)
    part = "host_source" if case.host else "source"
    changed = replace(code, **{part: replaced(getattr(code, part), case.edits)})
    # Host code of another form than TileLang's is an input that cannot be read.
    with pytest.raises(InputError if case.host else ScheduleRefused, match=case.words or None):
        prove(kernel.schedule, changed)
