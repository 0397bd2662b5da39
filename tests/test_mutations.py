"""Schedules mutated at random: what is accepted is right, and what is refused is refused for a read that differs."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from mutations import BLOCK_M, BLOCK_N, SCALE, SmallProblem, mutate, mutate_program, shipped

from tl_attention.interpret import POLICIES, Tile
from tl_attention.legality import AFTER_LOOP, Violation, find_violation
from tl_attention.machine import EARLY, LATE, Deadlock, execute
from tl_attention.problem import AttentionShape
from tl_attention.derivation import derive
from tl_attention.program import Program
from tl_attention.statements import LOADS, RESULTS

MODELS = ("synchronous", "asynchronous")
BLOCK_COUNTS = (1, 3, 7)
MUTANTS, SHARDS = 1000, 4


@pytest.fixture(scope="module")
def problems() -> dict[int, SmallProblem]:
    return {blocks: SmallProblem(blocks, seed=blocks) for blocks in range(1, 24)}


def outcomes(program: Program, problems: dict[int, SmallProblem], kv_order: str) -> list[str]:
    """`right`, `wrong` or `deadlock` for each block count and each adversary."""
    results = []
    for blocks in BLOCK_COUNTS:
        for policy in POLICIES.values():
            try:
                results.append("right" if problems[blocks].run(program, policy, kv_order).ok else "wrong")
            except Deadlock:
                results.append("deadlock")
    return results


def tile(program: Program, problem: SmallProblem, blocks: int, kv_order: str, observer) -> Tile:
    q, k, v = (x[0, 0] for x in problem.inputs)
    shape = AttentionShape(1, 1, len(q), len(k), q.shape[1], causal=True)
    return Tile(shape, q, k, v, block_M=BLOCK_M, block_N=BLOCK_N, kv_order=kv_order, index=0, blocks=blocks,
                scale=SCALE, table=program.table, observer=observer)


def named_read(
    violation: Violation, program: Program, problem: SmallProblem, kv_order: str
) -> list[torch.Tensor | None]:
    """The value of the read that a refusal names: in source order, and in the refused Program."""
    values: list[torch.Tensor | None] = []
    key = (violation.statement, violation.block, violation.buffer)
    for run_source in (True, False):
        seen: dict[tuple, torch.Tensor] = {}
        state = tile(
            program, problem, violation.blocks, kv_order, lambda s, b, buffer, x: seen.setdefault((s, b, buffer), x)
        )
        if run_source:
            for block in range(violation.blocks):
                for name in program.table.names:
                    state.run(name, block, dict.fromkeys(LOADS, 0))
        else:
            with suppress(Deadlock):  # The read that differs may come before a deadlock.
                execute(program, violation.blocks, state, violation.policy)
        if violation.statement == AFTER_LOOP:
            seen |= {(AFTER_LOOP, violation.blocks, buffer): state.buffers[buffer] for buffer in RESULTS}
        values.append(seen.get(key))
    return values


@pytest.mark.parametrize("shard", range(SHARDS))
def test_accepted_mutants_are_right_and_refusals_name_a_read_that_differs(shard, problems, record_property):
    rng = random.Random(1000 + shard)
    sources = list(shipped().values())
    counts: Counter[str] = Counter()
    for _ in range(MUTANTS // SHARDS):
        schedule = mutate(rng.choice(sources), rng)
        for model in MODELS:
            program = derive(schedule, model)
            violation = find_violation(program)
            results = outcomes(program, problems, schedule.kv_order)
            if violation is None:
                assert set(results) == {"right"}, f"accepted, but {results}: {schedule.label} {model}"
                counts["accepted"] += 1
            elif isinstance(violation, Violation):
                want, got = named_read(violation, program, problems[violation.blocks], schedule.kv_order)
                assert want is not None and got is not None, f"{violation.words}: no such read: {schedule.label}"
                assert not torch.equal(want, got), f"{violation.words}: the same value: {schedule.label} {model}"
                counts["refused though right" if set(results) == {"right"} else "refused and wrong"] += 1
            else:
                assert "deadlock" in results, f"{violation}: {schedule.label} {model}"
                counts["refused for a deadlock"] += 1
    for name, count in counts.items():
        record_property(name, count)
    print(f"\nshard {shard}: {dict(counts)}")
    assert counts["accepted"] >= 50 and counts["refused and wrong"] >= 50
    assert counts["refused for a deadlock"] >= 1


def wrong_under(program: Program, policies) -> bool:
    return find_violation(program, tuple(policies)) is not None


def random_policy(seed: int):
    rng = random.Random(seed)
    return lambda events: rng.choice(events)


@pytest.mark.parametrize("shard", range(2))
def test_a_lost_or_late_wait_acquire_or_release_shows_as_a_wrong_number(shard, problems):
    """Whether a Program can go wrong is asked of 20 random interleavings; the interpreter's two runs must catch it."""
    rng = random.Random(2000 + shard)
    programs = [derive(schedule, model) for schedule in shipped().values() for model in MODELS]
    counts: Counter[str] = Counter()
    for _ in range(100):
        mutant, what = mutate_program(rng.choice(programs), rng)
        can_go_wrong = wrong_under(mutant, [LATE, EARLY, *(random_policy(seed) for seed in range(20))])
        caught = set(outcomes(mutant, problems, "ascending")) != {"right"}
        assert caught or not can_go_wrong, f"{what}: goes wrong, but the interpreter does not show it"
        assert can_go_wrong or not caught, f"{what}: the interpreter is wrong where no interleaving is"
        counts["caught" if caught else "harmless"] += 1
    print(f"\nshard {shard}: {dict(counts)}")
    assert counts["caught"] >= 40


def test_the_small_problem_tells_a_wrong_program(problems):
    program = derive(shipped()["seed"])
    lost_rescale = replace(program, consumer=tuple(op for op in program.consumer if op.statement != "rescale"))
    assert problems[7].run(program, LATE).ok
    assert not problems[7].run(lost_rescale, LATE).ok
