"""Schedules are mutated at random: an accepted one is right, and a refused one is refused for a read that differs."""

import random
import re
from collections import Counter
from contextlib import suppress

import pytest
import torch
from mutations import (
    BLOCK_M,
    BLOCK_N,
    SCALE,
    SmallProblem,
    derive_small,
    enough,
    mutate,
    mutate_program,
    shipped,
    with_options,
)
from specialized import SPECIALIZED
from tiers import exhaustive, sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.lab.measure.candidate import SHARP
from tl_attention.lab.oracle.interpret import POLICIES
from tl_attention.lab.oracle.tile import STATEMENT_CODE, InterpretedTile, Settings
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.derivation import derive
from tl_attention.program.legality import AFTER_LOOP, Violation, find_violation
from tl_attention.program.machine import EARLY, LATE, Deadlock, execute
from tl_attention.program.program import Program
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.options import SoftmaxOptions, Split
from tl_attention.schedule.schedule import Schedule

MODELS = ("synchronous", "asynchronous")
BLOCK_COUNTS = (1, 3, 7)
# The small problem has no columns for the chunks of a real one: `derive_small`.
WHOLE = [schedule for schedule in shipped().values() if schedule.split == Split()]
MUTANTS, MUTANTS_WITH_OPTIONS, SHARDS = 480, 480, 8


class Problems(dict):
    def __init__(self, spread: float = 1.0) -> None:
        self.spread = spread

    def __missing__(self, blocks: int) -> SmallProblem:
        return self.setdefault(blocks, SmallProblem(blocks, seed=blocks, spread=self.spread))


@pytest.fixture(scope="module")
def problems() -> Problems:
    return Problems()


@pytest.fixture(scope="module")
def sharp() -> Problems:
    """Returns problems in which a maximum of other scores than a row's own shows."""
    return Problems(SHARP)


def outcomes(
    program: Program, problems: Problems, kv_order: str, softmax: SoftmaxOptions = SoftmaxOptions()
) -> list[str]:
    """Returns `right`, `wrong` or `deadlock` for each block count and each adversary."""
    results = []
    for blocks in BLOCK_COUNTS:
        for policy in POLICIES.values():
            try:
                results.append("right" if problems[blocks].run(program, policy, kv_order, softmax).ok else "wrong")
            except Deadlock:
                results.append("deadlock")
    return results


def tile(program: Program, problem: SmallProblem, blocks: int, kv_order: str, observer) -> InterpretedTile:
    q, k, v = (x[0, 0] for x in problem.inputs)
    shape = AttentionShape(1, 1, len(q), len(k), q.shape[1], mask=CAUSAL)
    return InterpretedTile(
        shape,
        {"Q": q, "K": k, "V": v},
        Settings(BLOCK_M, BLOCK_N, kv_order, observer=observer),
        index=0,
        blocks=range(blocks),
        table=program.table,
        scale=SCALE,
        asked={},
        code=STATEMENT_CODE,
    )


def columns(buffer: str) -> slice:
    """Returns the columns of a segment, such as acc_s[0:48]."""
    first, _, end = buffer.removeprefix(whole(buffer)).strip("[]").partition(":")
    return slice(int(first or 0), int(end) if end else None)


def named_read(
    violation: Violation, program: Program, problem: SmallProblem, kv_order: str
) -> list[torch.Tensor | None]:
    """Returns the value of the read that a refusal names: in source order, and in the refused Program.

    The softmax is the default one: the maximum that a threshold keeps would be the same value in two blocks.
    """
    values: list[torch.Tensor | None] = []
    buffer = whole(violation.buffer)
    # A mask may hide nothing of a segment, but hides something of every block.
    part = slice(None) if violation.expected.statement == "mask" else columns(violation.buffer)
    for run_source in (True, False):
        seen: dict[tuple, torch.Tensor] = {}
        state = tile(
            program, problem, violation.blocks, kv_order, lambda s, b, buffer, x: seen.setdefault((s, b, buffer), x)
        )
        if run_source:
            for block in range(violation.blocks):
                for name in program.table.names:
                    state.run(name, block, dict.fromkeys(program.table.loads, 0))
        else:
            with suppress(Deadlock):  # The read that differs may come before a deadlock.
                execute(program, violation.blocks, state, violation.policy)
        if violation.statement == AFTER_LOOP:
            seen |= {(AFTER_LOOP, violation.blocks, buffer): state.buffers[buffer] for buffer in program.table.output}
        value = seen.get((violation.statement, violation.block, buffer))
        values.append(value if value is None else value[..., part])
    return values


def judged(schedule: Schedule, program: Program, problems: Problems) -> str:
    """Says what became of a mutant; an accepted one must be right, and a refused one name a read that changes."""
    label = f"{schedule.label} {program.model}"
    violation = find_violation(program)
    results = set(outcomes(program, problems, schedule.kv_order, schedule.softmax))
    if violation is None:
        assert results == {"right"}, f"accepted, but {results}: {label}"
        return "accepted"
    if isinstance(violation, Violation):
        want, got = named_read(violation, program, problems[violation.blocks], schedule.kv_order)
        assert want is not None and got is not None, f"{violation.words}: no such read: {label}"
        assert not torch.equal(want, got), f"{violation.words}: the same value: {label}"
        return "refused though right" if results == {"right"} else "refused and wrong"
    assert "deadlock" in results, f"{violation}: {label}"
    return "refused for a deadlock"


@pytest.mark.parametrize("shard", sampled(range(SHARDS), [0]))
def test_accepted_mutants_are_right_and_refusals_name_a_read_that_differs(shard, problems):
    rng = random.Random(1000 + shard)
    counts: Counter[str] = Counter()
    least = {"accepted": 10, "refused and wrong": 10, "refused for a deadlock": 1}
    for _ in enough(MUTANTS // SHARDS * len(MODELS), counts, least):
        schedule = mutate(rng.choice(WHOLE), rng)
        counts.update(judged(schedule, derive(schedule, model), problems) for model in MODELS)


@exhaustive
@pytest.mark.parametrize("shard", range(SHARDS))
def test_so_are_mutants_with_options_and_a_wait_that_has_no_place_is_refused(shard, problems):
    rng = random.Random(3000 + shard)
    counts: Counter[str] = Counter()
    least = {"accepted": 7, "refused and wrong": 7, "refused by a rule": 1}
    for _ in enough(MUTANTS_WITH_OPTIONS // SHARDS, counts, least):
        schedule = mutate(with_options(rng.choice(SPECIALIZED), rng), rng)
        model = rng.choice((*MODELS, "asynchronous"))
        try:
            program = derive_small(schedule, model)
        except ScheduleRefused as refused:
            assert re.match(
                r"wait_before\.mma\d: .* between the issue of |release_before\.load_.: .* comes before the end of mma\d",
                str(refused),
            )
            counts["refused by a rule"] += 1
        else:
            counts[judged(schedule, program, problems)] += 1


def wrong_under(program: Program, policies) -> bool:
    return find_violation(program, tuple(policies)) is not None


def legal_programs_with_options(count: int, rng: random.Random) -> list[Program]:
    found: list[Program] = []
    while len(found) < count:
        with suppress(ScheduleRefused):
            program = derive_small(with_options(rng.choice(SPECIALIZED), rng), "asynchronous")
            found += [program] if find_violation(program) is None else []
    return found


def random_policy(seed: int):
    rng = random.Random(seed)
    return lambda events: rng.choice(events)


@pytest.mark.parametrize("shard", sampled(range(8), [0]))
def test_a_lost_or_late_wait_acquire_or_release_shows_as_a_wrong_number(shard, problems, sharp):
    """20 random interleavings say whether a Program can go wrong.

    The interpreter's two runs, each on ordinary and on sharp scores, must catch it.
    """
    rng = random.Random(2000 + shard)
    programs = [derive(schedule, model) for schedule in WHOLE for model in MODELS]
    programs += legal_programs_with_options(10, rng)
    counts: Counter[str] = Counter()
    for _ in enough(25, counts, {"caught": 10}):
        mutant, what = mutate_program(rng.choice(programs), rng)
        can_go_wrong = wrong_under(mutant, [LATE, EARLY, *(random_policy(seed) for seed in range(20))])
        caught = any(set(outcomes(mutant, of, "ascending")) != {"right"} for of in (problems, sharp))
        assert caught or not can_go_wrong, f"{what}: goes wrong, but the interpreter does not show it"
        assert can_go_wrong or not caught, f"{what}: the interpreter is wrong where no interleaving is"
        counts["caught" if caught else "harmless"] += 1
