"""Asks the proof about one mutant, in the processes of `mutate_code.py`."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from code_mutants.kernels import KERNELS, lowered
from code_mutants.operations import DELETED, DEVICE, Mutant
from code_mutants.reading import Code, prove
from tl_attention.errors import InputError
from tl_attention.schedule.schedule import Schedule

REFUSED, ACCEPTED, BROKEN, TIMEOUT = "refused", "accepted", "broken", "timeout"


@dataclass(frozen=True)
class Answer:
    """An answer is what the proof says about a mutant.

    `words` say why the mutant is refused, or how the proof broke. `kind` is what the changed line is read as now, "" if
    the line is gone.
    """

    outcome: str
    words: str = ""
    digest: str = ""
    kind: str = ""


def ask(kernel: str, mutant: Mutant) -> Answer:
    """Returns what the proof says of the kernel's code with this change."""
    return answer(KERNELS[kernel].schedule, lowered(KERNELS[kernel]), mutant)


def answer(schedule: Schedule, code: Code, mutant: Mutant) -> Answer:
    """Returns what the proof says of a code of the schedule with this change."""
    try:
        verdict = prove(schedule, mutant.of(code))
    except InputError as error:
        return Answer(REFUSED, str(error))
    except Exception:
        return Answer(BROKEN, traceback.format_exc().splitlines()[-1])
    kept = mutant.part == DEVICE and mutant.operation != DELETED
    return Answer(ACCEPTED, digest=verdict.digest, kind=verdict.kinds[mutant.line] if kept else "")
