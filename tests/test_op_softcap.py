"""Softcap and sinks on a Hopper GPU are compared with fp64."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from on_gpu import check, fresh

from tl_attention import attention
from tl_attention.problem.shape import DTYPES

pytestmark = pytest.mark.gpu


def some_sinks(heads: int) -> torch.Tensor:
    return torch.randn(heads, device="cuda") * 4 + 2


def check_call(q, k, v, *, causal: bool, softcap: float, sinks, **options) -> None:
    output = attention(q, k, v, causal=causal, softcap=softcap, sinks=sinks, **options)
    check(output, q, k, v, causal=causal, softcap=softcap, sinks=sinks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedule, causal", [("seed", False), ("best", False), ("best_causal", True)])
def test_scores_close_together_and_far_apart(schedule, causal, dtype):
    for spread, softcap in product((1.0, 8.0, 128.0), (0.5, 15.0, 30.0, 50.0, 300.0, 3000.0)):
        q, k, v = fresh(1, 2, 700, 1500, 128, dtype=dtype, spread=spread)
        check_call(q, k, v, causal=causal, softcap=softcap, sinks=None, schedule=schedule)


@pytest.mark.parametrize("schedule", ["seed", "best"])
def test_sinks_that_weigh_all_or_nothing(schedule):
    q, k, v = fresh(2, 5, 300, 400, 128, dtype="bfloat16")
    infinite = float("inf")
    sinks = torch.tensor([-infinite, -1e38, 0.0, 1e4, 3e38], device="cuda")
    check_call(q, k, v, causal=False, softcap=0.0, sinks=sinks, schedule=schedule)
    output = attention(q, k, v, sinks=sinks, schedule=schedule)
    plain = attention(q, k, v, schedule=schedule)
    assert (output[:, :2].float() - plain[:, :2].float()).abs().max() < 1e-2 and not output[:, 3:].any()
    assert not attention(q, k, v, sinks=torch.full((5,), infinite, device="cuda"), schedule=schedule).any()
    broken = torch.tensor([0.0, float("nan"), 0.0, 0.0, 0.0], device="cuda")
    output = attention(q, k, v, sinks=broken, schedule=schedule)
    assert output[:, 1].isnan().all() and output[:, [0, 2, 3, 4]].isfinite().all()


# The pipelined lowering adds the product to the mask's -inf, and makes a number that is none of both.
def test_repetitions_are_bitwise_equal_and_sizes_may_be_fixed():
    q, k, v = fresh(2, 40, 1000, 1100, 128, dtype="bfloat16")
    options = {"causal": True, "softcap": 30.0, "sinks": some_sinks(40)}
    first = attention(q, k, v, **options)
    assert all(torch.equal(attention(q, k, v, **options), first) for _ in range(50))
    check_call(q, k, v, specialize=True, **options)


def test_a_softcap_is_read_at_run_time():
    q, k, v = fresh(1, 3, 300, 500, 64, dtype="float16")
    for softcap in (1.0, 7.0, 50.0, 1e4, 1e20):
        check_call(q, k, v, causal=True, softcap=softcap, sinks=None)
