"""Checks that accepted random mma_sync schedules are right on the CPU, and that others are refused with a reason.

    python tools/schedule_mutants.py [--count 1000] [--seed 0] [--jobs 2]

Each schedule is one to four random steps away from a shipped one, and is proved as schedules are before they are
compiled. The interpreter runs an accepted schedule twice, with copies as late and as early as they may come, and
compares with fp64. A schedule that the proof of the values refuses is run too, and counted by what its numbers are. The
exit code is 1 if an accepted schedule is wrong.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import repeat
from typing import NamedTuple

import click
import torch

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.lab.oracle.interpret import verify
from tl_attention.lab.search.changes import walk
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import DTYPES
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.legality import find_violation
from tl_attention.program.machine import Deadlock
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import Named, load_file
from tl_attention.schedule.schedule import Schedule
from tl_attention.shipped import folder

MOST_STEPS = 4
# The outcomes of a mutant. A refused one is named by what its numbers are.
RIGHT, WRONG = "accepted and right", "ACCEPTED AND WRONG"
REFUSED_BUT_RIGHT, REFUSED_AND_WRONG, REFUSED = "refused though right", "refused and wrong", "refused"
# Kinds of refusals, by a pattern of their words: what a refusal says without numbers and names.
KINDS = {
    "overwrites .* before": "a value is overwritten before it is read",
    "before .* has written it": "a value is read before it is written",
    "is the last to write": "another value is the last",
    "deadlock": "a deadlock",
    "does not come between the issue of": "a wait has no such place",
    "columns, expected head_dim": "chunks are not head_dim's",
    "bytes of shared memory": "shared memory",
    "registers per thread for fragments": "registers for fragments",
    "registers per thread for the product": "registers for a product",
    "threads do not fit a KV block": "copies do not divide among threads",
    "num_stages is": "num_stages is not that of the places",
    "may still arrive": "copies race with copies",
    "may still read": "copies race with reads",
    "no wait between|no barrier": "a read races with its copies",
}


class Mutant(NamedTuple):
    """A mutant is a well-formed schedule, legal or not, and the variant that it is compiled for."""

    schedule: Schedule
    variant: Variant


class Judged(NamedTuple):
    """A judgement has what became of a mutant."""

    outcome: str  # such as RIGHT
    reason: str  # of a refusal, without its numbers
    label: str


@cache
def shipped() -> tuple[Named, ...]:
    """Reads the shipped files of mma_sync schedules."""
    files = map(
        load_file, sorted([*folder("schedules").glob("mma_sync*.yaml"), *folder("schedules").glob("mma_sync/*.yaml")])
    )
    return tuple(file for file in files if file.schedule.lowering == "mma_sync")


def drawn(rng: random.Random) -> Mutant:
    """Draws a shipped schedule, takes some random steps from it, and chooses a head size that its chunks add up to."""
    file = rng.choice(shipped())
    schedule = walk(file.schedule, rng, rng.randint(1, MOST_STEPS))
    head_dim = sum(schedule.split.mma0 or ()) or sizes_of(file.head_dims[0])[0]
    return Mutant(schedule, Variant(head_dim, rng.choice(DTYPES), rng.choice((FULL, CAUSAL))))


def accepted(rng: random.Random, count: int) -> Iterator[Mutant]:
    """Yields `count` mutants that the package accepts, each schedule once."""
    found: set[Schedule] = set()
    while len(found) < count:
        mutant = drawn(rng)
        with suppress(ScheduleRefused):
            refuse_unless_safe(Planned(mutant.schedule), mutant.variant.head_size)
            if mutant.schedule not in found:
                found.add(mutant.schedule)
                yield mutant


def judged(mutant: Mutant) -> Judged:
    """Says what the package makes of a mutant, and what it computes if it is accepted or its order is refused."""
    schedule, variant = mutant
    label = f"{schedule.label} {variant.head_size} {variant.dtype}{variant.mask.suffix}"
    try:
        refuse_unless_safe(Planned(schedule), variant.head_size)
    except ScheduleRefused as refusal:
        return Judged(_refused(mutant), _kind(str(refusal)), label)
    return Judged(RIGHT if _is_right(mutant) else WRONG, "", label)


def _refused(mutant: Mutant) -> str:
    """Says whether a mutant refused for its values computes right numbers; others break a limit, or race."""
    try:
        program = derive(mutant.schedule)
    except ScheduleRefused:
        return REFUSED
    if find_violation(program) is None:
        return REFUSED
    try:
        return REFUSED_BUT_RIGHT if _is_right(mutant) else REFUSED_AND_WRONG
    # A product of fragments that nobody has loaded, or that are another chunk's, may have no sizes that fit.
    except (Deadlock, RuntimeError):
        return REFUSED_AND_WRONG


def _is_right(mutant: Mutant) -> bool:
    """Says whether both runs of the interpreter are right, or raises Deadlock."""
    reports = verify(derive(mutant.schedule), mutant.schedule, mutant.variant)
    return all(report.ok for report in reports.values())


def _kind(refusal: str) -> str:
    """Returns the words of a refusal without its numbers and names."""
    for kind, words in KINDS.items():
        if re.search(kind, refusal):
            return words
    return refusal


def _of_seed(seed: int, number: int) -> Judged:
    torch.set_num_threads(1)
    return judged(drawn(random.Random(f"{seed} {number}")))


@click.command()
@click.option("--count", default=1000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=2, show_default=True)
def main(count: int, seed: int, jobs: int) -> None:
    """Judge so many, and print how many became what."""
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(_of_seed, repeat(seed, count), range(count), chunksize=8))
    for outcome, number in Counter(judgement.outcome for judgement in found).most_common():
        click.echo(f"{number:5} {outcome}")
    click.echo("\nrefused for")
    for reason, number in Counter(judgement.reason for judgement in found if judgement.reason).most_common():
        click.echo(f"{number:5} {reason}")
    wrong = [judgement.label for judgement in found if judgement.outcome == WRONG]
    for label in wrong:
        click.echo(f"WRONG {label}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
