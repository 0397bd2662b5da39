"""mma_sync's Programs are right in both runs on the CPU, and wrong where the order is wrong."""

from __future__ import annotations

import pytest
from mma_sync_schedules import EAGER, SHIPPED, changed, head_dim, reordered

from tl_attention.errors import ScheduleRefused
from tl_attention.oracle.interpret import verify
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.proof.legality import check
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
WRONG = {
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


@pytest.mark.parametrize("name", WRONG)
def test_wrong_orders_are_refused_in_words_and_wrong_on_the_cpu(name):
    schedule, words = WRONG[name]
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
