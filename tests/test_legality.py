"""A refusal says the broken dependence in words, or the deadlock."""

from __future__ import annotations

import pytest
from mutations import fitting_head_dim, shipped

from tl_attention.errors import ScheduleRefused
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.proof.legality import check
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
        "deadlock: the consumer waits to wait load_k(0)",
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
    """V is loaded first with one buffer: V(1) waits for MMA1(0), which follows MMA0(1), which waits for K(1) behind V(1)."""
    group = [[13], [1, 2], SOFTMAX, [12], [0], [14]]
    blocked = schedule([-1, 0, 3, 1, -1, 2], [-1, 0, 0, 1, -1, 1], group, num_stages=1)
    with pytest.raises(ScheduleRefused, match=r"deadlock: .*the producer waits to acquire load_v\(1\)"):
        check(derive(blocked, "asynchronous"))
    two = blocked.model_copy(update={"num_stages": 2})
    check(derive(two, "asynchronous"))


def test_num_stages_must_tell_the_buffers_that_placed_loads_get():
    late = shipped()["prefetch_late"].model_copy(update={"num_stages": 2})
    with pytest.raises(ScheduleRefused, match="give 1 buffers of K_shared and 1 of V_shared: expected num_stages 1"):
        refuse_unless_safe(Planned(late), 128)


@pytest.mark.parametrize("name", shipped())
def test_descending_kv_order_changes_no_dependence(name):
    refuse_unless_safe(Planned(shipped()[name].model_copy(update={"kv_order": "descending"})), fitting_head_dim(name))
