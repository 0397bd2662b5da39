"""Random mma_sync schedules run: a few on the CPU (tools/schedule_mutants.py runs a thousand), 60 accepted ones on a GPU."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from schedule_mutants import KINDS, RIGHT, WRONG, Mutant, accepted, drawn, judged
from simulated_warps import wrong
from tiers import exhaustive, sampled

from tl_attention.measure.bench import measure
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.trials import SILENT
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned

MUTANTS, SHARDS = 60, 4
COMPILED, PARTS = 60, 4


@pytest.mark.parametrize("shard", sampled(range(SHARDS), [0]))
def test_accepted_mutants_are_right_and_the_others_are_refused_with_a_reason(shard):
    counts: Counter[str] = Counter()
    for number in range(MUTANTS // SHARDS):
        mutant = drawn(random.Random(f"suite {shard} {number}"))
        found = judged(mutant)
        assert found.outcome != WRONG, found.label
        if found.outcome == RIGHT:
            assert wrong(derive(mutant.schedule)) is None, found.label
        else:
            assert found.reason in KINDS.values(), found
        counts[found.outcome] += 1
    print(f"\nshard {shard}: {dict(counts)}")
    assert counts[RIGHT] >= 2 and len(counts) >= 3


def compiled() -> list[Mutant]:
    """Returns the first COMPILED mutants that are drawn and accepted, no two alike."""
    return list(accepted(random.Random(13), COMPILED))


@exhaustive
def test_sixty_accepted_ones_are_drawn_of_many_kinds():
    mutants = compiled()
    assert len({mutant.schedule for mutant in mutants}) == len(mutants) == COMPILED
    assert {mutant.variant.head_dim for mutant in mutants} == {64, 128}
    assert len({mutant.schedule.table.slots.get("K_local") for mutant in mutants}) >= 2
    assert {mutant.schedule.kernel.ldmatrix for mutant in mutants} == {"x2", "x4"}


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS))
def test_accepted_mutants_are_right_on_the_gpu(part):
    candidates = [
        Candidate(f"mutant{number}", AttentionShape(2, 3, 300, 700, v.head_dim, v.dtype, v.mask), Planned(schedule))
        for number, (schedule, v) in enumerate(compiled())
        if number % PARTS == part
    ]
    rows = measure(candidates, lambda row: None, SILENT, rounds=1, peers=())
    assert [row.label for row in rows if row.status != "ok"] == [], {row.label: row.reason for row in rows}
