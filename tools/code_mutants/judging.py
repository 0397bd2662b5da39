"""A machine judges mutants that the proof accepts: the code runs on the CPU with and without the change, in many cases.

It is the reader's own run. All that threads do, with every value, must be the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from code_mutants.cases import Cases, drawn_cases
from code_mutants.integers import IntegerMutant
from code_mutants.operations import DEVICE
from code_mutants.ranges import KEYS, LANE, Range, largest, log_drawn, subjects
from code_mutants.reading import Code
from code_mutants.watched_run import Change
from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.read.expression import UNREADABLE, parsed
from tl_attention.codeproof.read.nodes import Arithmetic, If, all_nodes
from tl_attention.codeproof.read.text import Kernel
from tl_attention.codeproof.registry import PROOFS
from tl_attention.codeproof.tiles.row_tile_proof import RowTileProof
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.errors import InputError
from tl_attention.launch.plan import HostPlan
from tl_attention.problem.warpgroup import WARP
from tl_attention.program.derivation import derive
from tl_attention.schedule.schedule import Schedule

SAME_EVENTS, OTHER_NUMBERS, DIFFERS = "same events", "same events, other integers for the numbers", "differs"
UNMET, NOT_RUN = "no case has a difference", "no thread gets there"
FAILED = (Unsafe, *UNREADABLE, IndexError, OverflowError)
# How many cases there are in each run, for how many lanes of each warp, and how many loads and tiles were before: where
# the change is of some lanes, and elsewhere; for kernels whose blocks have one tile, and for others.
OF_LANES = ((220, WARP, 0),), tuple((64, WARP, start) for start in range(6))
OF_SIZES = (*((140, 1, 0),) * 4, (40, WARP, 0)), (*((96, 1, start) for start in range(6)), (32, WARP, 0), (32, WARP, 3))
# Of the host's plan.
CASES = 256
SEED = "judged"


@dataclass(frozen=True)
class Judged:
    """A Judged says what came out for a mutant, in how many cases, how many show the change, and where one differs."""

    judged: str
    differs: str = ""
    cases: int = 0
    met: int = 0


def judge(schedule: Schedule, code: Code, mutant: IntegerMutant) -> Judged:
    """Compares the code with and without the mutant's change."""
    if mutant.part != DEVICE:
        return _of_host(code, mutant)
    before, after = (PROOFS[schedule.lowering](schedule, derive(schedule), text) for text in (code, mutant.of(code)))
    change = None
    if mutant.operation != "uncast":
        change = Change(parsed(mutant.expression(code)), parsed(mutant.changed(code)))
    cases = met = 0
    outcome, ran = SAME_EVENTS, set[int]()
    of_lanes = mutant.range is not None and mutant.range.subject == LANE
    runs = (OF_LANES if of_lanes else OF_SIZES)[not isinstance(before, RowTileProof)]
    for number, (count, lanes, start) in enumerate(runs):
        of = mutant.range or (_around(mutant, before, f"{SEED} {number}") if number % 2 else None)
        drawn = drawn_cases(before, of, count, f"{SEED} {number}")
        found = _compare(drawn, after, change, lanes, start, ran)
        if found.judged in (DIFFERS, UNMET):
            return found
        cases, met = cases + found.cases, met + found.met
        outcome = OTHER_NUMBERS if OTHER_NUMBERS in (found.judged, outcome) else SAME_EVENTS
    if mutant.range and not met and not (of_lanes and mutant.line in _elected(before.kernel)):
        outcome = UNMET if mutant.line in ran else NOT_RUN
    return Judged(outcome, "", cases, met)


def _around(mutant: IntegerMutant, proof: Proof, seed: str) -> Range | None:
    """Draws where min, max, & or % with the mutant's number may show first: sizes near a multiple, or so many tiles."""
    draw = random.Random(f"{seed} {mutant.key}")
    sizes = [subject for subject in subjects(proof.kernel)[mutant.line] if subject.isidentifier()]
    if not sizes or not mutant.number:
        return None
    scale = draw.choice([1, proof.rows, proof.schedule.block_N])
    at = (mutant.number + (mutant.operation == "bits")) * scale * draw.choice([1, 1, 2, 3])
    of = Range(draw.choice(sizes), max(at - 2, 0), at + draw.choice([2, 2 * scale, at]))
    return of if of.below <= largest(of.subject, proof.code.variant) else None


def _elected(kernel: Kernel) -> set[int]:
    """Returns the lines that one lane of a warp runs: the first, as the proof has it. It is in no range above 0."""
    branches = [node for node in all_nodes(kernel.body) if isinstance(node, If) and node.elect is not None]
    inside = [node for branch in branches for node in all_nodes(branch.body)]
    return {node.line for node in inside if not isinstance(node, Arithmetic)}


def _compare(cases: Cases, after: Proof, change: Change | None, lanes: int, start: int, ran: set[int]) -> Judged:
    """Runs cases with the code as it is, and with the change, and adds the lines that run."""
    try:
        before = cases.run(None, lanes, start)
    except FAILED as error:
        return Judged(UNMET, f"the code without the change does not run: {error}")
    try:
        changed = cases.of(after).run(change, lanes, start)
    except FAILED as error:
        return Judged(DIFFERS, f"it does not run: {error}", len(cases), len(cases))
    ran |= changed.ran
    met = len(np.unique(changed.threads.place[changed.met])) if change else len(cases)
    for outcome, hashes in ((DIFFERS, "events"), (OTHER_NUMBERS, "numbers")):
        other = np.flatnonzero(getattr(before, hashes) != getattr(changed, hashes))
        if len(other):
            blocks = len(np.unique(changed.threads.place[other]))
            return Judged(outcome, f"{blocks} blocks, as {cases.words(int(other[0]), changed)}", len(cases), met)
    return Judged(SAME_EVENTS, "", len(cases), met)


def _of_host(code: Code, mutant: IntegerMutant) -> Judged:
    """Compares all that the host's plan says with and without the change, at drawn sizes and strides."""
    plans = [code.plan, mutant.of(code).plan]
    draw = random.Random(SEED)
    names = [dimension.name for dimension in (*plans[0].sizes, *plans[0].strides)]
    for _ in range(CASES):
        sizes = {name: log_drawn(draw, 0, KEYS) for name in names}
        if mutant.range:
            sizes[mutant.range.subject] = mutant.range.value(code.variant.some_group, draw)
        try:
            found = [_said(plan, sizes) for plan in plans]
        except (InputError, ZeroDivisionError) as error:
            return Judged(DIFFERS, str(error), CASES, CASES)
        if found[0] != found[1]:
            return Judged(DIFFERS, f"the plan at {sizes}", CASES, CASES)
    return Judged(SAME_EVENTS, "", CASES, CASES)


def _said(plan: HostPlan, sizes: dict[str, int]) -> tuple[object, ...]:
    """Returns all numbers of a plan at these sizes."""
    descriptors = [
        (d.name, d.tensor, d.dtype, [e.at(sizes) for e in (*d.dims, *d.strides)], d.box, d.element_strides, d.options)
        for d in plan.descriptors
    ]
    grids = [part.at(sizes) for part in (*plan.grid, *([plan.merging.blocks] if plan.merging else []))]
    return descriptors, grids, plan.parameters, plan.block, plan.cluster, plan.shared_bytes, plan.listing
