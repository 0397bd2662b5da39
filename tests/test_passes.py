"""The warp-specialised lowering's passes add operations to a Program, and the whole is still right."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from mutations import SCHEDULES, shipped
from overlap import FORMS, overlap

from tl_attention.files.schedule_file import load
from tl_attention.lowering.warp_specialized.dialect import PASSES
from tl_attention.oracle.interpret import verify
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.program import CONSUMER, Iteration, Program, Step
from tl_attention.proof.legality import find_violation
from tl_attention.schedule.schedule import Schedule

BEST = load(SCHEDULES / "best.yaml")
# Of what a pass adds.
ADDED = ("turn", "pass", "hold", "hold_last", "resume")


def text(iteration: Iteration) -> list[str]:
    """Returns the operations of an iteration in short, without the statements in between."""
    return [
        op.kind if op.kind in ADDED else f"{op.kind} {op.statement}" for op in iteration.operations if op.kind != "run"
    ]


def with_options(schedule: Schedule, **kernel: object) -> Schedule:
    return schedule.model_copy(update={"kernel": schedule.kernel.model_copy(update=kernel)})


def test_two_warpgroups_take_turns_from_the_first_products_operand_to_the_last_product() -> None:
    phases = derive(BEST).phases
    turn = ["turn", "wait load_k", "issue mma0", "wait load_v", "issue mma1", "pass"]
    assert text(phases.steady)[:6] == turn
    assert text(phases.prologue[0])[:4] == ["turn", "wait load_k", "issue mma0", "pass"]
    [last] = phases.epilogue
    assert text(last) == ["release load_q", "turn", "wait load_v", "issue mma1", "pass", "wait mma1", "release load_v"]
    without = derive(with_options(BEST, ping_pong=False)).phases
    assert "turn" not in text(without.steady) and text(without.steady)[:4] == turn[1:5]


def test_an_iteration_that_issues_no_product_has_no_turn() -> None:
    [last] = derive(overlap("source order", ping_pong=True)).phases.epilogue
    assert text(last) == ["release load_q", "wait mma1", "release load_v"]


def test_a_wait_stays_behind_the_exponentials_before_it_as_loosely_as_is_asked_for() -> None:
    """exp.0 has columns 0 to 48 of 176, in registers 0 to 24. mma1's wait comes between the chunks."""
    around = {
        "loose": ["hold_last", "wait mma1"],
        "exact": ["hold", "wait mma1"],
        "free": ["release load_k", "wait mma1"],
    }
    for waits, expected in around.items():
        steady = derive(with_options(BEST, waits=waits)).phases.steady
        listed = text(steady)
        assert listed[listed.index("wait mma1") - 1 :][:2] == expected
        assert listed.count("resume") == (waits == "exact")
        kept = [op for op in steady.operations if op.kind.startswith("hold")]
        assert [(op.statement, op.registers) for op in kept] == [("exp.0", (0, 24))] * (waits != "free")
    exact = derive(with_options(BEST, waits="exact")).phases.steady.operations
    place = next(number for number, op in enumerate(exact) if op.kind == "resume")
    assert [op.statement for op in exact[place : place + 2]] == ["exp.1", "exp.1"] and exact[place + 1].kind == "run"


def test_nothing_is_held_where_no_exponentials_come_before_a_wait() -> None:
    assert not {"hold_last", "resume"} & set(text(derive(shipped()["ws_source_order"]).phases.steady))


def test_q_is_released_after_the_last_wait_for_a_product_that_reads_it() -> None:
    three = [line for iteration in derive(overlap("three stages")).phases.epilogue for line in text(iteration)]
    assert three[three.index("release load_q") - 1] == "wait mma0" and three.count("release load_q") == 1
    # Here that wait is in the steady state, whose last iteration is one of many.
    assert text(derive(overlap()).phases.epilogue[0])[0] == "release load_q"
    for elsewhere in ({"q_operand": "registers"}, {"output": "tma"}):
        phases = derive(overlap(**elsewhere)).phases
        assert not [i for i in (*phases.prologue, phases.steady, *phases.epilogue) if "release load_q" in text(i)]


def test_p_in_shared_memory_is_shared_behind_the_last_chunk_of_its_cast() -> None:
    assert "share cast" in text(derive(overlap(p_operand="shared")).phases.steady)
    assert "share cast" not in text(derive(overlap()).phases.steady)
    halves = shipped()["fa3_overlap"].model_dump()
    halves["group"] = [["cast.0", "cast.1"] if group == ("cast",) else group for group in halves["group"]]
    halves |= {"split": {"cast": (48, 128)}, "kernel": {"p_operand": "shared"}}
    phases = derive(Schedule(**halves)).phases
    for iteration in (*phases.prologue, phases.steady):
        names = [(op.kind, op.statement) for op in iteration.operations]
        shared = names.index(("share", "cast.1"))
        assert names[shared - 2 : shared] == [("run", "cast.0"), ("run", "cast.1")]
    assert not [op for iteration in phases.epilogue for op in iteration.operations if op.kind == "share"]


@pytest.mark.parametrize(
    "schedule,count",
    [
        (overlap("overlap"), 1),
        (overlap("source order"), 1),
        # Their rescale of block 0 is one of the steady state, which does the same for every block.
        (overlap("three stages"), 0),
        (shipped()["ws_seed"], 0),
    ],
)
def test_a_prologue_does_not_rescale_block_0(schedule, count) -> None:
    program = derive(schedule)
    blocks = program.least_blocks + 3
    derived = [step for step in program.roles(blocks)[CONSUMER] if step.op.kind == "run"]
    kept = [step for step in program.phases.steps(blocks) if step.op.kind == "run"]
    left_out = [step for step in derived if step not in kept]
    assert [(step.op.statement, step.block) for step in left_out] == [("rescale", 0)] * count
    assert [step for step in derived if step not in left_out] == kept


def test_another_models_program_has_none_of_it() -> None:
    program = derive(BEST, "synchronous")
    kinds = {op.kind for _, operations in (*program.phases.prologue, program.phases.steady) for op in operations}
    assert not program.passes and not kinds & set(ADDED)
    assert len(derive(BEST).passes) == len(PASSES)


@pytest.mark.parametrize("waits", ["loose", "exact"])
@pytest.mark.parametrize("form", FORMS)
def test_the_passes_may_come_in_any_order(form, waits) -> None:
    program = derive(overlap(form, waits=waits, ping_pong=overlap(form).block_M == 128))
    assert {replace(program, passes=order).phases for order in permutations(program.passes)} == {program.phases}


class Whole(Program):
    """In a whole Program the consumer does what the passes made of it; loops that the kernel lengthens are as derived."""

    def roles(self, blocks: int) -> dict[str, tuple[Step, ...]]:
        roles = super().roles(blocks)
        return roles | {CONSUMER: tuple(self.phases.steps(blocks))} if blocks >= self.least_blocks else roles


def whole(program: Program) -> Whole:
    return Whole(program.table, program.model, program.consumer, program.producer, program.buffers, program.passes)


VARIANTS = {
    **{name: schedule for name, schedule in shipped().items() if schedule.lowering == "warp_specialized"},
    **{f"{form}, {waits}": overlap(form, waits=waits) for form in FORMS for waits in ("exact", "free")},
    "ping-pong": overlap(ping_pong=True, waits="exact"),
    "Q in registers": overlap(q_operand="registers"),
    "P in shared memory": overlap(p_operand="shared"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_whole_program_is_proved_and_right(name) -> None:
    schedule = VARIANTS[name]
    program = whole(derive(schedule))
    assert find_violation(program) is None
    errors = verify(program, schedule, Variant(64, "float16", CAUSAL))
    assert all(error.ok for error in errors.values()), {key: str(error) for key, error in errors.items()}
