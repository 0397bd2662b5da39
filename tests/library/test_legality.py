"""A refusal names the broken dependence, or the deadlock; only orders that break an edge of the graph are refused."""

import random
from collections import Counter
from contextlib import suppress

import pytest
from mutations import enough, fitting_head_dim, mutate, shipped, with_options
from specialized import SPECIALIZED
from tiers import sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.warp_specialized.dialect import TABLE
from tl_attention.program.derivation import Dependence, dependences, derive
from tl_attention.program.legality import Violation, check, find_violation
from tl_attention.program.planned import Planned
from tl_attention.program.program import Program
from tl_attention.schedule.keys import PRODUCER
from tl_attention.schedule.loop.attention import SOURCE
from tl_attention.schedule.schedule import Schedule

SOFTMAX = list(range(3, 12))
GROUPS = [[0], [1, 2], SOFTMAX, [12], [13], [14]]


def schedule(order, stage, group=GROUPS, num_stages=2) -> Schedule:
    return Schedule(block_M=128, block_N=128, threads=256, num_stages=num_stages, group=group, order=order, stage=stage)


CASES = {
    "a value is overwritten before it is read": (
        schedule([-1, 0, 1, 2, -1, 3], [-1, 0, 0, 1, -1, 1]),
        "scale(t) overwrites scores_scale before rescale(t-1), emitted later, has read it: "
        "rescale(t-1) needs what scale(t-1) wrote",
    ),
    "the cast overwrites an operand of the product before it": (
        schedule([-1, 0, 1, 4, 2, -1, 3], [-1, 0, 0, 0, 0, -1, 1], [[0], [1, 2], SOFTMAX[:-1], [12], [11], [13], [14]]),
        "cast(t) overwrites acc_s_cast before mma1(t-1), emitted later, has read it",
    ),
    "a value is read before it is written": (
        schedule([-1, 1, 0, 2, -1, 3], [-1, 0, 0, 0, -1, 0]),
        "row_max(t) reads acc_s before mma0(t), emitted later, has written it: row_max(t) needs what mma0(t) wrote",
    ),
    "acc_s would need a second version": (
        schedule([-1, 0, 1, 2, -1, 3], [-1, 0, 1, 1, -1, 1]),
        "mma0(t) overwrites acc_s before row_max(t-1), emitted later, has read it",
    ),
    "a load placed behind its reader": (
        schedule([3, 0, 1, 2, -1, 4], [0, 0, 0, 0, -1, 0]),
        "deadlock: the consumer waits for load_k(0)",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("model", ["synchronous", "asynchronous"])
def test_a_broken_dependence_is_refused_in_words(name, model):
    refused, words = CASES[name]
    with pytest.raises(ScheduleRefused) as error:
        check(derive(refused, model))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_producer_that_the_order_of_acquires_blocks_is_refused():
    """V is loaded first with one buffer: V(1) needs MMA1(0), which follows MMA0(1), which needs K(1), behind V(1)."""
    group = [[13], [1, 2], SOFTMAX, [12], [0], [14]]
    blocked = schedule([-1, 0, 3, 1, -1, 2], [-1, 0, 0, 1, -1, 1], group, num_stages=1)
    with pytest.raises(ScheduleRefused, match=r"deadlock: .*the producer waits to acquire load_v\(1\)"):
        check(derive(blocked, "asynchronous"))
    two = blocked.model_copy(update={"num_stages": 2})
    check(derive(two, "asynchronous"))


def test_num_stages_must_tell_the_buffers_that_placed_loads_get():
    late = shipped()["prefetch_late"].model_copy(update={"num_stages": 2})
    with pytest.raises(ScheduleRefused, match="give 1 buffer of K_shared and 1 of V_shared: expected num_stages 1"):
        refuse_unless_safe(Planned(late), 128)


@pytest.mark.parametrize("name", shipped())
def test_descending_kv_order_changes_no_dependence(name):
    refuse_unless_safe(Planned(shipped()[name].model_copy(update={"kv_order": "descending"})), fitting_head_dim(name))


MODELS = ("synchronous", "asynchronous")
TWO = {"load_k": 2, "load_v": 2}
SHARDS, MUTANTS = 4, 150


def edges_of(table, buffer: str, buffers=TWO) -> set[tuple[str, str, int, str]]:
    return {edge[:4] for edge in dependences(table, buffers) if edge.buffer == buffer}


def test_the_edges_of_an_accumulator_a_ring_and_a_value_that_is_carried_over() -> None:
    assert edges_of(SOURCE, "acc_o") == {
        *(("rescale", "mma1", 0, kind) for kind in ("flow", "anti", "output")),
        *(("mma1", "rescale", 1, kind) for kind in ("flow", "anti", "output")),
        *((name, name, 1, kind) for name in ("rescale", "mma1") for kind in ("flow", "anti", "output")),
    }
    for depth in (1, 3):
        assert edges_of(SOURCE, "K_shared", {"load_k": depth, "load_v": 2}) == {
            ("load_k", "mma0", 0, "flow"),
            ("mma0", "load_k", depth, "anti"),
            ("load_k", "load_k", depth, "output"),
        }
    assert edges_of(TABLE, "scores_max_prev") == {
        ("max_prev", "scale", 0, "flow"),
        ("scale", "max_prev", 1, "anti"),
        ("max_prev", "max_prev", 1, "output"),
    }
    # What the loop never writes makes nobody wait.
    assert not [edge for edge in dependences(SOURCE, TWO) if edge.buffer in ("K", "V", "Q_shared")]


def test_chunks_depend_on_each_other_where_their_columns_meet() -> None:
    schedule = shipped()["best"]
    between = {(edge.earlier, edge.later) for edge in dependences(schedule.table, TWO) if edge.distance == 0}
    assert ("exp.0", "cast") in between and ("exp.1", "cast") in between and ("exp.0", "exp.1") not in between


def broken(program: Program) -> list[Dependence]:
    """Returns the edges between the consumer's statements that its order breaks; loads need no order, as they wait."""
    emitted = [op for op in program.consumer if op.kind in ("run", "issue")]
    start = {op.statement: op.lag * len(emitted) + place for place, op in enumerate(emitted)}
    return [
        edge
        for edge in dependences(program.table, program.buffers)
        if {edge.earlier, edge.later} <= {*start}
        and start[edge.later] + edge.distance * len(emitted) <= start[edge.earlier]
        and edge.earlier != edge.later
    ]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", shipped())
def test_shipped_schedules_break_no_edge(name, model) -> None:
    assert not broken(derive(shipped()[name], model))


@pytest.mark.parametrize("shard", sampled(range(SHARDS), [0]))
def test_an_order_is_refused_if_and_only_if_it_breaks_an_edge(shard) -> None:
    """In this loop no statement writes the value that was there before, so values tell no more than edges do.

    A refusal names a buffer of a broken edge. An order may also deadlock: a load behind its reader, a ring too small.
    """
    rng = random.Random(5000 + shard)
    counts: Counter[str] = Counter()
    for _ in enough(MUTANTS, counts, {"refused": 40, "legal": 20}):
        base = rng.choice(list(shipped().values()))
        if base.lowering == "warp_specialized" and rng.random() < 0.5:
            base = with_options(rng.choice(SPECIALIZED), rng)
        with suppress(ScheduleRefused):  # A wait or a release without a place.
            program = derive(mutate(base, rng), rng.choice(MODELS))
            found, violation = broken(program), find_violation(program)
            if isinstance(violation, Violation):
                assert violation.buffer in {edge.buffer for edge in found}, violation.words
                counts["refused"] += 1
            else:
                assert violation or not found, f"accepted, but it breaks {found[0]}"
                counts["deadlock" if violation else "legal"] += 1


def test_the_maxima_are_read_after_the_loop_too() -> None:
    """The LSE reads them: here the last block's are cleared for a block that does not come."""
    groups = [
        *(["load_k"], ["mask", "mma0"], ["max_prev"], ["max_init"]),
        *(["row_max", "max_merge", "scale", "exp", "row_sum", "sum_merge", "cast"], ["rescale"], ["load_v"], ["mma1"]),
    ]
    keys = shipped()["seed"].model_dump() | {"group": groups, "order": [-1, 0, 3, 4, 5, 1, -1, 2]}
    late = Schedule(**keys | {"stage": [-1, 0, 0, 1, 0, 1, -1, 1]})
    with pytest.raises(
        ScheduleRefused, match=r"max_init\(n-1\) is the last to write scores_max: the output needs what"
    ):
        refuse_unless_safe(Planned(late), 128)


def without(edge: Dependence) -> Schedule:
    """Returns source order but for one edge: its second statement is right before its first, or a block before all."""
    names = [name for name in SOURCE.names if name not in SOURCE.loads]
    stage = dict.fromkeys(names, 0)
    if edge.distance:
        stage = {name: int(name != edge.later) for name in names}
    else:
        names.remove(edge.later)
        names.insert(names.index(edge.earlier), edge.later)
    groups = [["load_k"], *([name] for name in names), ["load_v"]]
    return Schedule(
        block_M=128,
        block_N=128,
        threads=256,
        num_stages=2,
        group=groups,
        order=[PRODUCER, *range(len(names)), PRODUCER],
        stage=[PRODUCER, *(stage[name] for name in names), PRODUCER],
    )


ORDERED = [
    edge
    for edge in dependences(SOURCE, TWO)
    if edge.earlier != edge.later and not {edge.earlier, edge.later} & {*SOURCE.loads}
]


@pytest.mark.parametrize("model", MODELS)
def test_every_single_edge_that_is_broken_is_refused(model) -> None:
    assert len(ORDERED) > 60
    for edge in ORDERED:
        program = derive(without(edge), model)
        assert edge in broken(program)
        assert isinstance(find_violation(program), Violation), edge
