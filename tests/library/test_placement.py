"""A schedule splits statements and places waits and releases: tests check what it derives and what it refuses."""

from __future__ import annotations

import pytest
from specialized import CHUNKED, REST, TWO, fa3

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.warp_specialized.dialect import TABLE
from tl_attention.program.derivation import derive
from tl_attention.program.legality import check, find_violation
from tl_attention.schedule.loop.table import chunk_names, split_table
from tl_attention.schedule.schedule import Schedule


def steady(schedule: Schedule, model: str = "asynchronous") -> list[str]:
    """Returns the steady state's operations in short: `wait mma1-1`, `run exp.0+0`."""
    return [f"{op.kind} {op.statement}{-op.lag:+d}" for op in derive(schedule, model).consumer]


def before(schedule: Schedule, operation: str, model: str = "asynchronous") -> str:
    """Returns the statement that runs, or is issued, next after an operation."""
    ops = steady(schedule, model)
    return next(op for op in ops[ops.index(operation) + 1 :] if op.startswith(("run", "issue")))


def refusal(schedule: Schedule) -> str:
    with pytest.raises(ScheduleRefused) as error:
        check(derive(schedule))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_chunks_of_a_table_read_and_write_the_segments_of_their_columns():
    split = {"exp": (48, 128), "cast": (96, 80), "row_sum": (96, 80), "rescale": (64, 64)}
    table = split_table(TABLE, split)
    segments = ("acc_s[0:48]", "acc_s[48:96]", "acc_s[96:176]")
    entry = table.by_name
    assert entry["mma0"].writes == entry["mask"].writes == segments
    assert entry["exp.0"].writes == segments[:1] and entry["exp.1"].writes == segments[1:]
    assert entry["exp.1"].reads == (*segments[1:], "scores_max") and entry["exp.1"].columns == (48, 176)
    assert entry["row_sum.0"].reads == (*segments[:2], "denominator", "scores_scale")
    assert entry["row_sum.1"].reads == (segments[2], "denominator")
    assert entry["cast.1"].writes == ("acc_s_cast[96:176]",) and entry["cast.1"].reads == segments[2:]
    assert entry["mma1"].reads[:3] == tuple(f"acc_s_cast{segment.removeprefix('acc_s')}" for segment in segments)
    assert entry["rescale.1"].writes == ("acc_o[64:128]",) and entry["mma1"].writes == ("acc_o[0:64]", "acc_o[64:128]")
    assert table.results == ("scores_max", "denominator", "acc_o[0:64]", "acc_o[64:128]")
    assert entry["scale"].columns is None


@pytest.mark.parametrize(
    "split",
    [
        TWO,
        {"cast": (16, 160)},
        {"rescale": (64, 64)},
        {"exp": (96, 80), "row_sum": (96, 80)},
        {"exp": (48, 128), "row_sum": (16, 160), "cast": (96, 48, 32), "rescale": (32, 32, 64)},
    ],
)
@pytest.mark.parametrize("model", ["synchronous", "asynchronous"])
def test_chunks_in_the_place_of_their_statement_are_proved_and_wait_where_it_does(split, model):
    names = [part for name in REST for part in chunk_names(name, split.get(name))]
    program = derive(fa3(*names, split=split), model)
    assert find_violation(program) is None
    assert before(fa3(*names, split=split), "wait mma1-1") == f"run {chunk_names('cast', split.get('cast'))[0]}+0"


def test_chunks_may_stand_between_the_products():
    """MMA1(t-1) is issued behind half of the exponentials, or a chunk is cast as soon as it is there."""
    check(derive(fa3(*CHUNKED, split=TWO, mma1=2)))
    parts = ("exp.0", "cast.0", "exp.1", "cast.1", "row_sum", "rescale.1", "rescale.0")
    split = {"exp": (48, 128), "cast": (48, 128), "rescale": (64, 64)}
    early = fa3(*parts, split=split)
    check(derive(early))
    assert before(early, "wait mma1-1") == "run cast.0+0", "cast.0 is the first to overwrite MMA1's operand"
    late = fa3("exp.0", "exp.1", "row_sum", "rescale.1", "cast.0", "cast.1", "rescale.0", split=split)
    assert before(late, "wait mma1-1") == "run rescale.1+0", "rescale.1 is the first to touch MMA1's result"


RESCALE_SPLIT = fa3("exp", "row_sum", "cast", "rescale.0", "rescale.1", split={"rescale": (64, 64)})
REFUSED = {
    "a chunk before the maximum": (
        Schedule(**fa3(*CHUNKED, split=TWO).model_dump() | {"order": (-1, 0, 1, 3, 4, 2, 5, 6, 7, -1)}),
        "exp.1(t) reads acc_s[48:176] before mask(t), emitted later, has written it: exp.1(t) needs what mask(t) wrote",
    ),
    "a chunk behind its sum": (
        fa3("exp.0", "row_sum", "exp.1", "cast", "rescale", split=TWO),
        "row_sum(t) reads acc_s[48:176] before exp.1(t), emitted later, has written it: row_sum(t) needs what exp.1(t)",
    ),
    "a cast before its exponentials": (
        fa3("exp.0", "cast.0", "cast.1", "exp.1", "row_sum", "rescale", split=TWO | {"cast": (64, 112)}),
        "cast.0(t) reads acc_s[48:64] before exp.1(t), emitted later, has written it",
    ),
    "sums in the wrong order": (
        fa3("exp", "row_sum.1", "row_sum.0", "cast", "rescale", split={"row_sum": (96, 80)}),
        "row_sum.1(t) reads denominator before row_sum.0(t), emitted later, has written it",
    ),
    "half of acc_o rescaled too late": (
        Schedule(**RESCALE_SPLIT.model_dump() | {"stage": (-1, 0, 1, 0, 0, 0, 0, 0, 1, -1)}),
        "mma1(t-1) overwrites acc_o[64:128] before rescale.1(t-1), emitted later, has read it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_chunk_that_breaks_a_dependence_is_refused_in_words(name):
    schedule, words = REFUSED[name]
    assert words in refusal(schedule)


@pytest.mark.parametrize("place", ["row_max", "scale", "exp.0", "exp.1", "row_sum", "cast"])
def test_a_wait_shows_up_where_it_is_asked_for_with_its_release(place):
    placed = fa3(*CHUNKED, split=TWO, wait_before={"mma1": place})
    check(derive(placed))
    ops = steady(placed)
    at = ops.index("run mask+0" if place == "row_max" else f"run {place}+0")
    assert ops[at - 2 : at] == ["wait mma1-1", "release load_v-1"] and ops.count("wait mma1-1") == 1


def test_a_product_is_also_done_where_a_later_one_is_waited_for():
    """MMA0(t) is issued before MMA1(t-1): their waits, and both buffers' releases, move up together."""
    together = fa3(*CHUNKED, split=TWO, mma1=0, wait_before={"mma1": "max_prev"})
    ops = steady(together)
    at = ops.index("issue mma1-1") + 1
    assert ops[at : at + 4] == ["wait mma0+0", "release load_k+0", "wait mma1-1", "release load_v-1"]
    check(derive(together))
    # A wait that is asked for stays, though nothing is in flight there any more.
    both = fa3(*CHUNKED, split=TWO, wait_before={"mma1": "max_prev", "mma0": "row_max"})
    ops = steady(both)
    # The mask goes with row_max.
    assert ops[ops.index("run mask+0") - 2 :][:2] == ["wait mma0+0", "release load_k+0"]
    check(derive(both))


def test_a_wait_may_be_asked_for_in_the_iteration_after_the_issue():
    """Three stages issue MMA0(t) last, and wait for it in the next iteration before row_max."""
    label = "warp_specialized_128x128_t256_n2_desc_0p_1-2o3s0_3-11o2s1_12o0s2_13p_14o1s2"
    three = Schedule.from_label(label).model_dump()
    for place, after in (("rescale", "issue mma0+0"), ("max_prev", "issue mma1-2"), ("row_max", "run max_prev-1")):
        placed = Schedule(**three | {"wait_before": {"mma0": place}})
        check(derive(placed))
        ops = steady(placed)
        assert ops[ops.index("wait mma0-1") - 1] == after or (place, ops[0]) == ("rescale", "wait mma0-1")


# Between which two each product's wait may stand, and at which statements.
PLACES = {
    "mma0": ("mma0(t) and mask(t)", ["mma1", "max_prev", "row_max"]),
    "mma1": ("mma1(t-1) and cast(t)", ["max_prev", "row_max", "scale", "exp.0", "exp.1", "row_sum", "cast"]),
}


@pytest.mark.parametrize("product, place", [("mma1", "mma0"), ("mma1", "rescale"), ("mma1", "mma1"), ("mma0", "exp.1")])
def test_a_wait_before_the_issue_or_behind_the_need_is_refused_with_the_places_that_it_may_have(product, place):
    between, places = PLACES[product]
    with pytest.raises(ScheduleRefused) as error:
        derive(fa3(*CHUNKED, split=TWO, wait_before={product: place}))
    assert str(error.value) == (
        f"wait_before.{product}: {place} does not come between the issue of {between}, by which it must be done: "
        f"expected one of {', '.join(places)}"
    )
    for name in places:
        check(derive(fa3(*CHUNKED, split=TWO, wait_before={product: name})))


@pytest.mark.parametrize("model", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("place", ["row_max", "exp.0", "exp.1", "rescale"])
def test_a_release_shows_up_where_it_is_asked_for(place, model):
    placed = fa3(*CHUNKED, split=TWO, release_before={"load_k": place})
    check(derive(placed))
    assert steady(placed, model).count("release load_k+0") == 1
    # The mask goes with row_max.
    asked = "mask" if place == "row_max" else place
    assert before(placed, "release load_k+0", model) == f"run {asked}+0"


@pytest.mark.parametrize(
    "load, place, words",
    [
        ("load_k", "max_prev", "max_prev(t) comes before the end of mma0(t), which reads K_shared"),
        ("load_k", "mma1", "mma1(t-1) comes before the end of mma0(t), which reads K_shared"),
        ("load_v", "exp.0", "exp.0(t) comes before the end of mma1(t-1), which reads V_shared"),
    ],
)
def test_a_release_before_its_reader_is_done_is_refused_with_the_places_that_it_may_have(load, place, words):
    """A release at such a place would be a release an iteration later."""
    placed = fa3(*CHUNKED, split=TWO, release_before={load: place})
    message = refusal(placed)
    assert message.startswith(f"release_before.{load}: {words}: expected one of ")
    places = message.partition("expected one of ")[2].split(", ")
    expected = ["row_max", "scale", "exp.0", "exp.1", "row_sum", "cast", "rescale"]
    assert places == (expected if load == "load_k" else expected[-2:])
    for name in places:
        check(derive(fa3(*CHUNKED, split=TWO, release_before={load: name})))


def test_a_reader_that_is_done_last_leaves_no_statement_to_release_its_buffer_before():
    last = fa3(*CHUNKED, split=TWO, mma1=1 + len(CHUNKED), release_before={"load_v": "cast"})
    with pytest.raises(ScheduleRefused, match="comes before the end of mma1.*: no statement comes later, remove it"):
        derive(last, "synchronous")


def test_a_release_that_comes_too_late_for_the_producer_deadlocks_with_one_buffer_and_not_with_two():
    """K(t-1) is released before rescale(t-1), behind the wait for K(t), which needs the same buffer."""
    label = "warp_specialized_128x128_t256_n2_desc_0p_1-2o2s0_3-11o1s1_12o3s1_13p_14o0s2"
    late = Schedule.from_label(f"{label}~release_before.load_k=rescale")
    check(derive(late))
    words = refusal(Schedule.from_label(f"{label}~kernel.k_stages=1~release_before.load_k=rescale"))
    assert words.startswith("deadlock: the consumer waits for load_k(1); the producer waits to acquire load_k(1)")
    assert words.endswith("(buffers: K_shared 1, V_shared 2)")
    check(derive(Schedule.from_label(f"{label}~kernel.k_stages=1~release_before.load_k=cast")))


def test_the_rings_have_the_depths_of_their_own():
    program = derive(fa3(*REST, kernel={"k_stages": 3, "v_stages": 1}))
    assert program.buffers == {"load_k": 3, "load_v": 1} and find_violation(program) is None
    assert derive(fa3(*REST, kernel={"k_stages": 3, "v_stages": 1}), "synchronous").buffers == program.buffers
