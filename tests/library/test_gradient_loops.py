"""The loops of gradients are ordered, derived and proved as the forward's is, and faults in them are refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.kernels.backward.dialect import fences
from tl_attention.kernels.backward.roles import GradientRoles
from tl_attention.kernels.preflight import check_limits, proofs, refuse_unless_safe
from tl_attention.kernels.registry import OF_LOOPS, lowering_of
from tl_attention.problem.variant import Variant
from tl_attention.program import races
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.program.program import Operation, Program
from tl_attention.schedule.files.named import resolve, resolve_forward
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.loop.loops import FORWARD, LOOPS, NUMBER
from tl_attention.schedule.schedule import Schedule

SHIPPED = {loop: resolve(f"backward/{loop}").schedule for loop in LOOPS if loop != FORWARD}


def changed(loop: str, **keys: Any) -> Schedule:
    """Returns the shipped schedule of a loop without the waits that it asks for, and with these keys."""
    return Schedule(**SHIPPED[loop].model_dump() | {"wait_before": {}} | keys)


def refusal(schedule: Schedule) -> str:
    with pytest.raises(ScheduleRefused) as found:
        refuse_unless_safe(Planned(schedule), 128)
    return str(found.value)


def steady(schedule: Schedule) -> list[str]:
    program = derive(schedule)
    return [f"{op.kind} {op.statement} {op.lag}" for op in program.phases.steady.operations]


@pytest.mark.parametrize("loop", SHIPPED)
def test_a_schedule_of_each_loop_is_proved_and_is_its_label(loop):
    schedule = SHIPPED[loop]
    refuse_unless_safe(Planned(schedule), 128)
    refuse_unless_safe(Planned(schedule), 64)
    assert Schedule.from_label(schedule.label) == schedule and f"_{loop}_" in schedule.label
    assert [*proofs(schedule, derive(schedule))] == [
        "every read sees the value that source order gives it",
        "the roles of a thread block neither race nor deadlock",
    ]


def test_waits_and_releases_of_dkdv_follow_from_what_its_statements_touch():
    assert steady(changed("dkdv")) == [
        "wait load_q 0", "issue s 0", "wait load_do 0", "issue dp 0", "wait dv 1", "fence load_do 1", "release load_do 1",
        "wait dk 1", "release load_q 1", "wait s 0", "run mask 0", "run exp 0", "run cast_p 0",
        "issue dv 0", "wait dp 0", "run ds 0", "issue dk 0",
    ]  # fmt: skip


def test_k_of_dq_is_released_behind_its_second_reader_and_waited_for_before_its_first():
    assert steady(changed("dq")) == [
        "wait load_k 0", "issue s 0", "wait load_v 0", "issue dp 0", "wait dq 1", "release load_k 1", "wait s 0",
        "run mask 0", "run exp 0", "wait dp 0", "release load_v 0", "run ds 0", "issue dq 0",
    ]  # fmt: skip
    at_once = steady(changed("dq", wait_before={"dq": "s"}))
    assert at_once[:4] == ["wait dq 1", "release load_k 1", "wait load_k 0", "issue s 0"]


# Each moves one group of the shipped order.
REFUSED = [
    (
        "dkdv",
        {"order": [-1, -1, 0, 1, 2, 3, 5, 4]},
        "dk(t) reads ds_cast before ds(t), emitted later, has written it: ",
    ),
    ("dkdv", {"order": [-1, -1, 0, 3, 1, 4, 2, 5]}, "ds(t) reads acc_dp before dp(t), emitted later, has written it: "),
    ("dq", {"order": [-1, -1, 0, 1, 3, 2, 4]}, "ds(t) reads acc_s before exp(t), emitted later, has written it: "),
    # The exponentials of the next block would overwrite S, which dS of this one still reads.
    ("dq", {"stage": [-1, -1, 0, 0, 0, 1, 1]}, "exp(t) overwrites acc_s before ds(t-1), emitted later, has read it: "),
]


@pytest.mark.parametrize("loop, keys, words", REFUSED)
def test_a_wrong_order_is_refused_in_the_words_of_the_loop(loop, keys, words):
    assert refusal(changed(loop, **keys)).startswith(words)


LATE = {"order": [-1, -1, 0, 1, 3, 4, 2], "stage": [-1, -1, 0, 0, 0, 0, 1]}
ACCEPTED = [
    ("dq", LATE),
    ("dq", {"wait_before": {"dq": "s"}}),
    ("dq", {"wait_before": {"dp": "exp"}, "release_before": {"load_v": "dq"}}),
    ("dq", {"group": [["load_k"], ["load_v"], ["dp"], ["s"], ["mask", "exp"], ["ds"], ["dq"]]}),
    ("dq", {"split": {"exp": [32, 32]}, "group": [["load_v"], ["load_k"], ["s"], ["dp"], ["mask", "exp.0", "exp.1"], ["ds"], ["dq"]]}),
    ("dq", {"kernel": {"k_stages": 1, "v_stages": 3}, "wait_before": {"dq": "s"}}),
    ("dkdv", {"wait_before": {"dk": "s", "dv": "ds"}}),
    ("dkdv", {"kernel": {"q_stages": 1, "do_stages": 1}, "wait_before": {"dk": "s"}}),
    ("dkdv", {"order": [-1, -1, 0, 1, 2, 4, 3, 5]}),
    ("dkdv", {"group": [["load_do"], ["load_q"], ["dp"], ["s"], ["mask", "exp", "cast_p"], ["dv"], ["ds"], ["dk"]]}),
]  # fmt: skip


@pytest.mark.parametrize("loop, keys", ACCEPTED)
def test_options_mean_what_they_mean_for_the_forward(loop, keys):
    refuse_unless_safe(Planned(changed(loop, **keys)), 64)


def test_one_buffer_of_a_tile_that_two_products_read_in_turn_is_a_deadlock():
    """The next block's K is needed before this block's is read for the second time."""
    words = refusal(changed("dq", kernel={"k_stages": 1}))
    assert words.startswith("deadlock: the consumer waits for load_k(1); the producer waits to acquire load_k(1)")


def test_rings_have_the_depth_of_their_own_key():
    assert derive(changed("dkdv", kernel={"q_stages": 3, "do_stages": 1})).buffers == {"load_q": 3, "load_do": 1}
    assert derive(changed("dq", kernel={"k_stages": 3})).buffers == {"load_k": 3, "load_v": 2}


# --- limits ----------------------------------------------------------------------------------------------------------

# What ptxas made of prototypes on 2026-11-28: which of these fit without a spill.
FIT = [
    ("dkdv", 64, 64, True), ("dkdv", 32, 192, False), ("dkdv", 128, 64, False), ("dkdv", 64, 96, True),
    ("dkdv", 32, 96, True), ("dkdv", 64, 128, True), ("dkdv", 128, 128, False), ("dq", 128, 64, True),
    ("dq", 64, 128, True), ("dq", 64, 192, True), ("dq", 64, 256, True), ("dkdv", 64, 192, False),
]  # fmt: skip


@pytest.mark.parametrize("loop, block_N, head_dim, fits", FIT)
def test_registers_that_would_spill_are_refused_by_the_sum_of_the_fragments(loop, block_N, head_dim, fits):
    schedule = changed(loop, block_N=block_N, num_stages=1)
    if fits:
        check_limits(Planned(schedule), head_dim)
    else:
        with pytest.raises(
            ScheduleRefused, match=r"needs \d+ registers per thread for fragments alone, 256 threads have 240"
        ):
            check_limits(Planned(schedule), head_dim)


def test_more_stages_than_fit_are_refused_with_the_formula():
    words = refusal(changed("dkdv", num_stages=6))
    assert (
        "(2 * block_M 128 + (6 + 6 buffers) * block_N 64) * head_dim 128 * 2 + (6 + 6 buffers) * block_N 64 * 4"
        in words
    )


# --- faults in a Program -----------------------------------------------------------------------------------------


def with_steady(program: Program, change: Any) -> Program:
    """Returns a Program whose last pass changes the list of operations of every iteration."""

    def changes(phases: Any) -> Any:
        def one(iteration: Any) -> Any:
            return iteration._replace(operations=tuple(change([*iteration.operations])))

        return replace(
            phases,
            prologue=tuple(map(one, phases.prologue)),
            steady=one(phases.steady),
            epilogue=tuple(map(one, phases.epilogue)),
        )

    return replace(program, passes=(*program.passes, changes))


def without(kind: str, statement: str) -> Any:
    return lambda operations: [op for op in operations if (op.kind, op.statement) != (kind, statement)]


def early(statement: str, before: str) -> Any:
    """Returns a change that puts the release of a load, with its fence, before an operation on another statement."""

    def change(operations: list[Operation]) -> Sequence[Operation]:
        moved = [op for op in operations if op.statement == statement and op.kind in ("release", "fence")]
        kept = [op for op in operations if op not in moved]
        place = next((n for n, op in enumerate(kept) if (op.kind, op.statement) == ("wait", before)), None)
        return operations if place is None else [*kept[:place], *moved, *kept[place:]]

    return change


FAULTS = [
    ("dkdv", without("fence", "load_do"), "has read without a fence"),
    ("dkdv", without("release", "load_do"), "deadlock: the producer of block 0 waits for dO_empty"),
    ("dkdv", without("release", "load_k"), "deadlock: the producer of block 0 waits for K_empty"),
    ("dkdv", without("wait", "load_q"), "has not waited for it"),
    ("dkdv", early("load_q", "dv"), "still have to read"),
    ("dq", early("load_k", "dq"), "still have to read"),
    ("dq", without("wait", "load_v"), "has not waited for it"),
    ("dq", without("release", "load_do"), "deadlock: the producer of block 0 waits for dO_empty"),
]


@pytest.mark.parametrize("loop, fault, words", FAULTS, ids=[str(number) for number in range(len(FAULTS))])
def test_a_fault_of_the_roles_is_refused(loop, fault, words):
    schedule = changed(loop)
    faulty = with_steady(derive(schedule), fault)
    with pytest.raises(ScheduleRefused, match=words):
        [*lowering_of(schedule).prove(schedule, faulty)]


@pytest.mark.parametrize(
    "loads_each, releases_each, words",
    [
        (False, False, None),
        (True, False, "deadlock: the producer of block 0 waits for K_empty"),
        (False, True, "deadlock: .*warpgroup 0 of block 0 waits for K_full"),
    ],
)
def test_k_and_v_are_loaded_and_released_once_for_all_heads_that_share_them(loads_each, releases_each, words):
    schedule = SHIPPED["dkdv"]
    once, each = (GradientRoles.of(schedule, derive(schedule), group=group) for group in (2, 1))
    events = {}
    for process in once.processes:
        apart = loads_each if process.warpgroup < 0 else releases_each
        events[process] = [*(each.events(process, (3, 3, 4, 4)) if apart else once.events(process, (3, 4)))]
    if words is None:
        races.prove(events, once.counts)
    else:
        with pytest.raises(ScheduleRefused, match=words):
            races.prove(events, once.counts)


def test_only_buffers_that_threads_read_have_a_fence():
    program, found = derive(SHIPPED["dq"]), derive(SHIPPED["dkdv"])
    assert not any(op.kind == "fence" for op in program.phases.steady.operations)
    assert fences(found.phases, SHIPPED["dkdv"], found.buffers) != found.phases


# --- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = [
    ("block_M: 192\nthreads: 384", "block_M: 192, expected a divisor of 128: row vectors are padded to so many rows"),
    ("loop: dqkv", "loop: expected 'forward', 'dq' or 'dkdv', found 'dqkv'"),
    ("lowering: pipelined", "loop: lowering pipelined has no loop dq: write `lowering: warp_specialized`"),
    ("kv_order: ascending", "kv_order: expected descending, the only order of this lowering: blocks that need a mask"),
    ("split: {rescale: [64, 64]}", "split.rescale: only loop forward takes it, remove it from loop dq"),
    ("softmax: {row_max: thread}", "softmax: only loop forward takes it, remove it from loop dq"),
    ("kernel: {cluster: 1}", "kernel.cluster: only loop forward takes it, remove it from loop dq"),
    ("kernel: {do_stages: 1}", "kernel.do_stages: only loop dkdv takes it, remove it from loop dq"),
    ("wait_before: {dp: row_max}", "wait_before.dp: no statement row_max in this schedule: loop dq has none"),
    ("group: [[load_v], [load_k], [mma0], [dp], [mask, exp], [ds], [dq]]", "group[2]: no statement mma0 in this schedule"),
    ("group: [[load_v], [load_k], [s], [mask, exp], [ds], [dq]]", "group: in no group: dp (19)"),
    ("split: {ds: [16, 32]}", "split.ds: 48 columns in total, expected block_N 64"),
]  # fmt: skip


@pytest.mark.parametrize("line, words", MISTAKES)
def test_a_mistake_in_a_schedule_of_a_gradient_gets_one_line(line, words, tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: backward/dq\n{line}\n")
    with pytest.raises(InputError) as found:
        load(file)
    # Chunks that groups do not name are a mistake of their own.
    lines = str(found.value).splitlines()
    assert sum(words in line for line in lines) == 1 and len(lines) == 1 + line.startswith("split: {ds"), found.value


def test_a_schedule_of_one_loop_given_where_another_is_expected_gets_one_line(tmp_path: Path):
    with pytest.raises(
        InputError, match=r"dq.yaml:\d+: refused: loop: it orders loop dq, expected a schedule of loop forward$"
    ):
        resolve_forward("backward/dq")
    with pytest.raises(InputError, match=r"it orders loop forward, expected a schedule of loop dkdv$"):
        resolve("best").refuse_other_loop("dkdv")
    best = resolve("best").schedule
    with pytest.raises(ScheduleRefused, match="^it orders loop forward, expected a schedule of loop dq$"):
        lowering_of(best).check_variant(best, Variant(128, "float16", loop="dq"))
    file = tmp_path / "mine.yaml"
    file.write_text("base: best\nwait_before: {dp: exp.0}\n")
    with pytest.raises(InputError, match="wait_before.dp: only loop dq or dkdv takes it, remove it from loop forward"):
        load(file)


def test_every_loop_has_lowerings_and_numbers_of_its_own():
    assert {*OF_LOOPS} == {*LOOPS}
    assert [NUMBER[name] for name in LOOPS["dq"].names] == [0, 18, 1, 8, 13, 19, 20, 21]


def test_random_orders_are_refused_or_proved_never_neither():
    """Shuffled groups and stages come to a verdict; some of each loop are accepted."""
    rng, accepted = random.Random(76), dict.fromkeys(SHIPPED, 0)
    for loop, base in SHIPPED.items():
        for _ in range(60):
            placed = [order for order in base.order if order >= 0]
            places = sorted(placed, key=lambda place: place + rng.uniform(0, 2.5))
            ranks = iter({place: rank for rank, place in enumerate(places)}[p] for p in placed)
            order = [-1 if order < 0 else next(ranks) for order in base.order]
            last = rng.randrange(2)
            stage = [-1 if o < 0 else last if index == len(order) - 1 else 0 for index, o in enumerate(order)]
            try:
                refuse_unless_safe(Planned(changed(loop, order=order, stage=stage)), 64)
                accepted[loop] += 1
            except ScheduleRefused as refused:
                assert "\n" not in str(refused)
    assert all(2 <= count < 60 for count in accepted.values()), accepted
