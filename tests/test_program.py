"""Tests check the Program that each schedule derives, in both models, and the loop to which it unrolls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mutations import shipped

from tl_attention.lowering.pipelined.constants import pipeline_arguments
from tl_attention.program.derivation import derive
from tl_attention.program.program import CONSUMER, PRODUCER, Operation
from tl_attention.proof.legality import find_violation
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
    """Both have the same wait: with a fixed count the prologue would wait for nothing."""
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
    """Each statement has an entry; consumers are a stage later, a load num_stages - 1 before its reader, and loads first."""
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
