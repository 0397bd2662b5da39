"""Mutants of integers are those of the golden code, which tests/golden/ keeps: a process asks the proof, and judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from code_mutants.integers import IntegerMutant, draw_integers
from code_mutants.judging import Judged, judge
from code_mutants.proving import ACCEPTED, Answer, answer
from code_mutants.reading import Code
from tl_attention.codeproof.registry import PROOFS
from tl_attention.schedule.schedule import Schedule


def golden_names() -> list[str]:
    """Returns the names of the golden kernels that have a proof."""
    # Late, here and below: it is in tests/.
    from golden_kernels import KERNELS

    return [name for name, kernel in KERNELS.items() if kernel.schedule.lowering in PROOFS]


def golden(name: str) -> tuple[Schedule, Code]:
    """Returns the schedule and the generated code of a golden kernel."""
    from golden import code
    from golden_kernels import KERNELS

    return KERNELS[name].schedule, code(name)


def draw_of_all(names: Sequence[str], count: int, seed: str) -> list[IntegerMutant]:
    """Draws so many mutants, of each kernel as many as of any other, or one more."""
    each, more = divmod(count, len(names))
    found: list[IntegerMutant] = []
    for number, name in enumerate(names):
        drawn = draw_integers(golden(name)[1], each + (number < more), f"{seed} {name}")
        found += [replace(mutant, kernel=name) for mutant in drawn]
    return found


def ask_and_judge(mutant: IntegerMutant) -> tuple[Answer, Judged | None]:
    """Returns what the proof says of a mutant and, where the proof accepts it, the machine's judgement."""
    schedule, code = golden(mutant.kernel)
    said = answer(schedule, code, mutant)
    return said, judge(schedule, code, mutant) if said.outcome == ACCEPTED else None
