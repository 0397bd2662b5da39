"""Tests check the Program that each schedule derives, its loop unrolled, and what the warp-specialised passes add."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from mutations import SCHEDULES, shipped
from overlap import FORMS, overlap

from tl_attention.kernels.pipelined.constants import pipeline_arguments
from tl_attention.kernels.warp_specialized.dialect import PASSES
from tl_attention.lab.oracle.interpret import verify
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.legality import find_violation
from tl_attention.program.program import CONSUMER, PRODUCER, Iteration, Operation, Program, Step
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule

MODELS = ("synchronous", "asynchronous")
CASES = [(name, model) for name in shipped() for model in MODELS]


def text(ops: tuple[Operation, ...]) -> list[str]:
    return [f"{op.kind} {op.statement}{-op.lag:+d}" for op in ops if op.kind != "run"]


def test_the_seed_waits_at_once_in_the_synchronous_model():
    program = derive(shipped()["seed"], "synchronous")
    assert text(program.consumer) == [
        "acquire load_k+1",
        "issue load_k+1",
        "acquire load_v+0",
        "issue load_v+0",
        "wait load_k+0",
        "issue mma0+0",
        "wait mma0+0",
        "release load_k+0",
        "wait load_v-1",
        "issue mma1-1",
        "wait mma1-1",
        "release load_v-1",
    ]
    assert program.buffers == {"load_k": 2, "load_v": 2}
    assert not program.producer


def test_the_seed_waits_as_late_as_is_legal_in_the_asynchronous_model():
    program = derive(shipped()["seed"], "asynchronous")
    ops = [f"{op.kind} {op.statement}{-op.lag:+d}" for op in program.consumer]
    assert ops.index("wait mma0+0") + 2 == ops.index("run row_max+0"), "row_max is the first to read acc_s"
    assert ops.index("wait mma1-1") + 2 == ops.index("run cast+0"), "cast is the first to overwrite acc_s_cast"
    assert text(program.producer) == ["acquire load_k+0", "issue load_k+0", "acquire load_v+0", "issue load_v+0"]


def test_fa3s_wait_for_the_second_product_falls_before_cast_and_rescale_by_itself():
    program = derive(shipped()["fa3_overlap"], "asynchronous")
    ops = [f"{op.kind} {op.statement}{-op.lag:+d}" for op in program.consumer]
    assert ops[-4:] == ["wait mma1-1", "release load_v-1", "run cast+0", "run rescale+0"]


@pytest.mark.parametrize("model", MODELS)
def test_splitting_a_group_without_changing_order_or_stage_gives_the_identical_program(model):
    seed = shipped()["seed"]
    split = Schedule(
        **{
            **seed.model_dump(),
            "group": [[0], [1], [2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12], [13], [14]],
            "order": [-1, 0, 1, 4, 5, 6, 2, -1, 3],
            "stage": [-1, 0, 0, 0, 0, 0, 1, -1, 1],
        }
    )
    assert derive(split, model) == derive(seed, model)


@pytest.mark.parametrize("name,model", CASES)
def test_every_instance_is_issued_waited_for_and_released_exactly_once(name, model):
    program = derive(shipped()[name], model)
    for blocks in (1, 2, 3, 9):
        steps = [step for role in program.roles(blocks).values() for step in role]
        for statement in program.table.names:
            kind = program.table.by_name[statement].kind
            kinds = ["run"] if kind == "vector" else ["issue", "wait"]
            kinds += ["acquire", "release"] if kind == "load" else []
            for kind in kinds:
                seen = [step.block for step in steps if (step.op.kind, step.op.statement) == (kind, statement)]
                # Each of a load's readers waits for it.
                seen = [*set(seen)] if (kind, program.table.readers.get(statement, ())[1:]) > ("wait", ()) else seen
                assert sorted(seen) == list(range(blocks)), f"{kind} {statement} of {blocks} blocks"


@pytest.mark.parametrize("name,model", CASES)
def test_shipped_schedules_are_proved_safe(name, model):
    assert find_violation(derive(shipped()[name], model)) is None


@pytest.mark.parametrize("name,model", CASES)
def test_phases_put_the_whole_loop_together_again(name, model):
    """The phases are those before any pass; loops start with the shortest one that phases make."""
    program = replace(derive(shipped()[name], model), passes=())
    least = program.phases.least_blocks
    for blocks in range(least, least + program.span + 2):
        assert tuple(program.phases.steps(blocks)) == program.roles(blocks)[CONSUMER]
    with pytest.raises(AssertionError, match="expected at least"):
        list(program.phases.steps(least - 1))


def test_a_prologues_wait_leaves_fewer_products_in_flight_than_the_steady_states():
    """The prologue has the steady state's wait: with a fixed count it would wait for nothing."""
    program = derive(shipped()["fa3_overlap"], "asynchronous")

    def outstanding(iteration):
        return [op.outstanding for op in iteration.operations if (op.kind, op.statement) == ("wait", "mma0")]

    assert outstanding(program.phases.prologue[0]) == [0]
    assert outstanding(program.phases.steady) == [1]


def test_waits_in_the_expanded_loop_leave_only_products_issued_after_their_target():
    for name, model in CASES:
        program = derive(shipped()[name], model)
        for blocks in (1, 2, 3, 8):
            issued: list[tuple[str, int]] = []
            for op, block in program.roles(blocks)[CONSUMER]:
                if op.statement in program.table.products and op.kind == "issue":
                    issued.append((op.statement, block))
                if op.statement in program.table.products and op.kind == "wait":
                    assert issued[len(issued) - 1 - op.outstanding] == (op.statement, block)


def test_buffers_of_a_placed_load_follow_its_distance_to_the_reader():
    assert derive(shipped()["prefetch"]).buffers == {"load_k": 3, "load_v": 2}
    assert derive(shipped()["prefetch_late"]).buffers == {"load_k": 1, "load_v": 1}


def test_the_seeds_pipeline_arguments_are_tilelangs():
    """Each statement has an entry; consumers are a stage later, a load num_stages - 1 before its reader, and first."""
    arguments = pipeline_arguments(derive(shipped()["seed"]))
    assert arguments == {
        "order": [0, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 4, 1, 5],
        "stage": [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 2],
    }


def test_the_producers_order_is_the_order_of_the_groups():
    seed = shipped()["seed"]
    swapped = seed.model_copy(update={"group": (seed.group[4], *seed.group[1:4], seed.group[0], seed.group[5])})
    ops = [op.statement for op in derive(swapped, "asynchronous").producer if op.kind == "issue"]
    assert ops == ["load_v", "load_k"]
    assert PRODUCER in derive(swapped, "asynchronous").roles(3)


# --- the warp-specialised lowering's passes --------------------------------------------------------------------------


BEST = load(SCHEDULES / "best.yaml")
# Of what a pass adds.
ADDED = ("turn", "pass", "hold", "hold_last", "resume")


def short(iteration: Iteration) -> list[str]:
    """Returns the operations of an iteration in short, without the statements in between."""
    return [
        op.kind if op.kind in ADDED else f"{op.kind} {op.statement}" for op in iteration.operations if op.kind != "run"
    ]


def with_options(schedule: Schedule, **kernel: object) -> Schedule:
    return schedule.model_copy(update={"kernel": schedule.kernel.model_copy(update=kernel)})


def test_two_warpgroups_take_turns_from_the_first_products_operand_to_the_last_product() -> None:
    phases = derive(BEST).phases
    turn = ["turn", "wait load_k", "issue mma0", "wait load_v", "issue mma1", "pass"]
    assert short(phases.steady)[:6] == turn
    assert short(phases.prologue[0])[:4] == ["turn", "wait load_k", "issue mma0", "pass"]
    [last] = phases.epilogue
    assert short(last) == ["release load_q", "turn", "wait load_v", "issue mma1", "pass", "wait mma1", "release load_v"]
    without = derive(with_options(BEST, ping_pong=False)).phases
    assert "turn" not in short(without.steady) and short(without.steady)[:4] == turn[1:5]


def test_an_iteration_that_issues_no_product_has_no_turn() -> None:
    [last] = derive(overlap("source order", ping_pong=True)).phases.epilogue
    assert short(last) == ["release load_q", "wait mma1", "release load_v"]


def test_a_wait_stays_behind_the_exponentials_before_it_as_loosely_as_is_asked_for() -> None:
    """exp.0 has columns 0 to 48 of 176, in registers 0 to 24. mma1's wait comes between the chunks."""
    around = {
        "loose": ["hold_last", "wait mma1"],
        "exact": ["hold", "wait mma1"],
        "free": ["release load_k", "wait mma1"],
    }
    for waits, expected in around.items():
        steady = derive(with_options(BEST, waits=waits)).phases.steady
        listed = short(steady)
        assert listed[listed.index("wait mma1") - 1 :][:2] == expected
        assert listed.count("resume") == (waits == "exact")
        kept = [op for op in steady.operations if op.kind.startswith("hold")]
        assert [(op.statement, op.registers) for op in kept] == [("exp.0", (0, 24))] * (waits != "free")
    exact = derive(with_options(BEST, waits="exact")).phases.steady.operations
    place = next(number for number, op in enumerate(exact) if op.kind == "resume")
    assert [op.statement for op in exact[place : place + 2]] == ["exp.1", "exp.1"] and exact[place + 1].kind == "run"


def test_nothing_is_held_where_no_exponentials_come_before_a_wait() -> None:
    assert not {"hold_last", "resume"} & set(short(derive(shipped()["ws_source_order"]).phases.steady))


def test_exponentials_that_a_product_writes_over_are_not_read_again_to_hold_a_wait() -> None:
    """MMA0 writes over the exponentials of two blocks before, between their cast and the wait for MMA1."""
    group = [
        *(["load_k"], ["mask", "mma0", "max_init", "row_max", "max_merge", "scale"], ["max_prev"]),
        *(["exp", "row_sum", "sum_merge", "cast", "mma1"], ["rescale"], ["load_v"]),
    ]
    keys = BEST.model_dump() | {"split": {}, "wait_before": {}, "group": group}
    late = Schedule(**keys | {"order": [-1, 1, 2, 0, 3, -1], "stage": [-1, 1, 0, 2, 1, -1]})
    for waits in ("loose", "exact"):
        listed = short(derive(with_options(late, waits=waits)).phases.steady)
        assert listed.index("issue mma1") < listed.index("issue mma0") < listed.index("wait mma1")
        assert not {"hold", "hold_last", "resume"} & {*listed}


def test_q_is_released_after_the_last_wait_for_a_product_that_reads_it() -> None:
    three = [line for iteration in derive(overlap("three stages")).phases.epilogue for line in short(iteration)]
    assert three[three.index("release load_q") - 1] == "wait mma0" and three.count("release load_q") == 1
    # Here that wait is in the steady state, whose last iteration is one of many.
    assert short(derive(overlap()).phases.epilogue[0])[0] == "release load_q"
    for elsewhere in ({"q_operand": "registers"}, {"output": "tma"}):
        phases = derive(overlap(**elsewhere)).phases
        assert not [i for i in (*phases.prologue, phases.steady, *phases.epilogue) if "release load_q" in short(i)]


def test_p_in_shared_memory_is_shared_behind_the_last_chunk_of_its_cast() -> None:
    assert "share cast" in short(derive(overlap(p_operand="shared")).phases.steady)
    assert "share cast" not in short(derive(overlap()).phases.steady)
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
    """In a whole Program the consumer does what the passes made of it; loops that the kernel lengthens are derived."""

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
