"""mma_sync's Programs, shipped, faulty and random, are right in every run on the CPU, or are refused."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from mma_sync_schedules import EAGER, SHIPPED, changed, head_dim, reordered
from mutations import enough
from schedule_mutants import KINDS, REFUSED_AND_WRONG, RIGHT, WRONG, Mutant, accepted, drawn, judged
from simulated_warps import wrong
from tiers import exhaustive, sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.mma_sync.replay import prove
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.lab.measure.bench import measure
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.trials import SILENT
from tl_attention.lab.oracle.interpret import verify
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.legality import check
from tl_attention.program.planned import Planned
from tl_attention.program.program import Iteration, Phases, Program
from tl_attention.schedule.schedule import Schedule

WINDOW = Mask(left=100, right=40)
MASKS = {"open": FULL, "causal": CAUSAL, "window": WINDOW}


def reports(
    schedule: Schedule, size: int, dtype: str = "float16", mask: Mask = FULL, **options: object
) -> dict[str, bool]:
    """Says whether each run is right, on a ragged problem of several tiles."""
    variant = Variant(size, dtype, mask, **options)
    return {run: report.ok for run, report in verify(derive(schedule), schedule, variant).items()}


@pytest.mark.parametrize("dtype,mask", [("float16", "open"), ("bfloat16", "causal"), ("float16", "window")])
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_schedule_is_right_early_and_late(name, dtype, mask):
    assert reports(SHIPPED[name], head_dim(name), dtype, MASKS[mask]) == {"late": True, "early": True}


@pytest.mark.parametrize("name", ["mma_sync", "mma_sync_small"])
def test_grouped_heads_and_the_lse_are_right(name):
    found = reports(SHIPPED[name], 128, mask=CAUSAL, group=3, optional=frozenset({"LSE"}))
    assert len(found) == 4 and all(found.values())


def test_head_size_64_is_right_with_q_in_shared_memory():
    parts = [name for n in range(4) for name in (f"frag_k.{n}", f"frag_q.{n}", f"mma0.{n}")]
    groups = [EAGER.group[0], ["mask", *parts], *EAGER.group[2:]]
    narrow = changed(group=groups, split={"mma0": (16,) * 4})
    assert reports(narrow, 64, "bfloat16", CAUSAL) == {"late": True, "early": True}


def swapped(schedule: Schedule, group: int, one: str, other: str) -> Schedule:
    """Returns the schedule with two statements of a group in each other's place."""
    place = {one: other, other: one}
    return reordered(schedule, group, *(place.get(name, name) for name in schedule.group[group]))


# Orders that are wrong, and the words of the refusal.
WRONG_ORDERS = {
    "a product before its fragment": (
        swapped(EAGER, 1, "frag_q.3", "mma0.3"),
        r"^mma0\.3\(t-1\) reads Q_local\[0\] before frag_q\.3\(t-1\), emitted later, has written it: mma0\.3\(t-1\) needs "
        r"what frag_q\.3\(t-1\) wrote and would see what frag_q\.2\(t-1\) wrote$",
    ),
    "the first chunk, which clears acc_s, second": (
        reordered(
            EAGER, 1, "mask", "frag_k.1", "frag_q.1", "mma0.1", "frag_k.0", "frag_q.0", "mma0.0", *EAGER.group[1][7:]
        ),
        r"^mma0\.1\(t-1\) reads acc_s",
    ),
    "a product before P": (
        swapped(SHIPPED["mma_sync"], 3, "cast.2", "mma1.2"),
        r"^mma1\.2\(t-1\) reads acc_s_cast\[32:48\] before cast\.2\(t-1\), emitted later, has written it",
    ),
    "a rescale by the scale of the block before": (
        swapped(EAGER, 2, "rescale", "max_prev"),
        r"^rescale\(t-1\) reads scores_scale before scale\(t-1\), emitted later, has written it",
    ),
}


@pytest.mark.parametrize("name", WRONG_ORDERS)
def test_wrong_orders_are_refused_in_words_and_wrong_on_the_cpu(name):
    schedule, words = WRONG_ORDERS[name]
    with pytest.raises(ScheduleRefused, match=words):
        check(derive(schedule))
    try:
        found = reports(schedule, 128)
    except RuntimeError as error:  # Of fragments that are not there.
        assert "shapes" in str(error) or "size" in str(error)
    else:
        assert not all(found.values())


def test_a_fragment_ahead_of_its_product_gets_a_place_of_its_own():
    schedule = swapped(EAGER, 4, "mma1.1", "frag_v.2")
    assert EAGER.table.slots["V_local"] == 1 and schedule.table.slots["V_local"] == 2
    check(derive(schedule))
    assert all(reports(schedule, 128).values())


# A schedule whose first products are in the prologue, with Q in shared memory and in registers.
AHEAD = changed(
    SHIPPED["mma_sync_small"],
    stage=(0, 0, 0, 1, 1),
    order=(0, 3, 4, 1, 2),
    wait_before={"load_k": None, "load_v": None},
)
SCHEDULES = {**SHIPPED, "products ahead": AHEAD}


def refusal(program: Program) -> str | None:
    try:
        prove(program)
    except ScheduleRefused as refused:
        return str(refused)
    return None


def with_phases(program: Program, phases: Phases) -> Program:
    """Returns the Program with these phases."""
    return replace(program, passes=(lambda _: phases,))


def faults(program: Program) -> Iterator[tuple[str, Program]]:
    """Yields Programs with one fault: a wait, barrier or load of Q's registers gone, a weaker wait, a shorter ring.

    A wait for less leaves one more in flight; a shorter ring has one buffer less.
    """
    phases = program.phases
    iterations = (*phases.prologue, phases.steady, *phases.epilogue)
    for number, (t, operations) in enumerate(iterations):
        for index, op in enumerate(operations):
            told = f"{op.kind} {op.statement} of iteration {number}"
            others = {}
            if op.kind in ("wait", "sync", "keep"):
                others[f"{told} left out"] = ()
            if op.kind == "wait":
                others[f"{told}, one more in flight"] = (op._replace(outstanding=op.outstanding + 1),)
            for what, instead in others.items():
                changed_too = Iteration(t, (*operations[:index], *instead, *operations[index + 1 :]))
                listed = (*iterations[:number], changed_too, *iterations[number + 1 :])
                first = len(phases.prologue)
                yield what, with_phases(program, Phases(listed[:first], listed[first], listed[first + 1 :]))
    for load, count in program.buffers.items():
        if count > 1:
            shorter = replace(with_phases(program, phases), buffers=program.buffers | {load: count - 1})
            yield f"one buffer of {load} fewer", shorter


@pytest.mark.parametrize("name", sampled(SCHEDULES, [*SCHEDULES][::2]))
def test_each_schedule_is_proved_and_right_in_every_run(name):
    program = derive(SCHEDULES[name])
    assert refusal(program) is None and wrong(program, random_runs=20) is None


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_fault_is_refused_in_words_and_every_wait_and_barrier_is_needed(name):
    """No wait or barrier is redundant: without it two warps read what they should not."""
    program, words = derive(SCHEDULES[name]), set()
    for what, faulty in faults(program):
        refused = refusal(faulty)
        assert refused, f"{what}: accepted"
        assert wrong(faulty), f"{what}: refused, but right in every run: {refused}"
        words.add(next(word for word in WORDS if word in refused))
    assert words >= {WORDS[0], WORDS[1]}


WORDS = (
    "copies, with no wait between",
    "copied, with no barrier of all threads behind the wait",
    "has not copied",
    "copies over what a warp may still read of block",
    "copies to where the copies of block",
    "reads Q in registers, which are not loaded yet",
)


def test_a_refusal_names_the_read_and_the_copy():
    program = derive(EAGER)
    found = {what: refusal(faulty) for what, faulty in faults(program)}
    assert (
        found["wait load_k of iteration 1 left out"] == "frag_k.0(0) reads what load_k(0) copies, with no wait between"
    )
    assert len([words for words in found.values() if words and "load_v(" in words]) >= 2


def test_q_is_in_registers_before_the_first_product_also_where_that_is_in_the_prologue():
    refuse_unless_safe(Planned(AHEAD), 128)
    phases = derive(AHEAD).phases
    kinds = [op.kind if op.kind != "run" else op.statement for _, ops in phases.prologue for op in ops]
    assert kinds.index("keep") < kinds.index("mma0.0")


MUTANTS, SHARDS = 60, 4
COMPILED, PARTS = 60, 4


@pytest.mark.parametrize("shard", sampled(range(SHARDS), [0]))
def test_accepted_mutants_are_right_and_the_others_are_refused_with_a_reason(shard):
    counts: Counter[str] = Counter()
    for number in enough(MUTANTS // SHARDS, counts, {RIGHT: 2}):
        mutant = drawn(random.Random(f"suite {shard} {number}"))
        found = judged(mutant)
        assert found.outcome != WRONG, found.label
        if found.outcome == RIGHT:
            assert wrong(derive(mutant.schedule)) is None, found.label
        else:
            assert found.reason in KINDS.values(), found
        counts[found.outcome] += 1
    assert REFUSED_AND_WRONG in counts


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
