"""Softcap, sinks, windows and grouped heads on a Hopper GPU are compared with fp64."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from mutations import SCHEDULES
from on_gpu import Tensors, check, fresh

from tl_attention import attention
from tl_attention.op.rows import Rows
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import DTYPES

pytestmark = pytest.mark.gpu


def some_sinks(heads: int) -> torch.Tensor:
    return torch.randn(heads, device="cuda") * 4 + 2


def check_capped(q, k, v, *, causal: bool, softcap: float, sinks, **options) -> None:
    output = attention(q, k, v, causal=causal, softcap=softcap, sinks=sinks, **options)
    check(output, q, k, v, causal=causal, softcap=softcap, sinks=sinks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("schedule, causal", [("seed", False), ("best", False), ("best_causal", True)])
def test_scores_close_together_and_far_apart(schedule, causal, dtype):
    for spread, softcap in product((1.0, 8.0, 128.0), (0.5, 15.0, 30.0, 50.0, 300.0, 3000.0)):
        q, k, v = fresh(1, 2, 700, 1500, 128, dtype=dtype, spread=spread)
        check_capped(q, k, v, causal=causal, softcap=softcap, sinks=None, schedule=schedule)


@pytest.mark.parametrize("schedule", ["seed", "best"])
def test_sinks_that_weigh_all_or_nothing(schedule):
    q, k, v = fresh(2, 5, 300, 400, 128, dtype="bfloat16")
    infinite = float("inf")
    sinks = torch.tensor([-infinite, -1e38, 0.0, 1e4, 3e38], device="cuda")
    check_capped(q, k, v, causal=False, softcap=0.0, sinks=sinks, schedule=schedule)
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
    check_capped(q, k, v, specialize=True, **options)


def test_a_softcap_is_read_at_run_time():
    q, k, v = fresh(1, 3, 300, 500, 64, dtype="float16")
    for softcap in (1.0, 7.0, 50.0, 1e4, 1e20):
        check_capped(q, k, v, causal=True, softcap=softcap, sinks=None)


# --- windows ---------------------------------------------------------------------------------------------------------


# The matrix test has none that is smaller than a block.
SMALL = [
    ("best", (0, 0)),
    ("best", (5, 3)),
    ("best_causal", (1, 0)),
    ("best_causal", (0, 1)),
    ("seed", (0, 0)),
    ("seed", (0, 1)),
    ("inferred", (5, 3)),
    ("ws_three_stages", (1, 0)),
    ("prefetch", (33, 44)),
]


def check_window(
    schedule: str, sizes: tuple[int, ...], window: tuple[int, int], causal: bool = False, **options
) -> None:
    """The output is inside the error budget, on fresh inputs; sizes are batch, heads, seq_q, seq_kv."""
    q, k, v = fresh(*sizes, 128, dtype=options.pop("dtype", "float16"))
    file = SCHEDULES / f"{schedule}.yaml" if schedule else None
    output = attention(q, k, v, causal=causal, window_size=window, schedule=file, **options)
    check(output, q, k, v, causal=causal, window=window)


@pytest.mark.parametrize("schedule,window", SMALL)
def test_windows_smaller_than_a_block(schedule, window):
    for sizes in ((2, 3, 300, 777), (1, 2, 129, 129), (2, 2, 65, 1000)):
        check_window(schedule, sizes, window)


def test_what_a_window_larger_than_all_keys_computes_is_what_none_does():
    q, k, v = fresh(1, 3, 300, 500, 128)
    assert torch.equal(attention(q, k, v, window_size=(500, 300)), attention(q, k, v))
    assert torch.equal(attention(q, k, v, causal=True, window_size=(10_000, 0)), attention(q, k, v, causal=True))


def test_fixed_sizes_and_long_sequences():
    check_window("best", (1, 3, 700, 1500), (300, 200), specialize=True)
    check_window("seed", (1, 3, 700, 1500), (300, 200), specialize=True)
    check_window("", (1, 2, 16384, 16384), (1024, 1024), dtype="bfloat16")
    check_window("", (1, 2, 16384, 16384), (1023, 0), causal=True, dtype="bfloat16")


@pytest.mark.parametrize("schedule", ["best", "experiments/causal/rescale_threshold", "seed"])
def test_scores_far_apart_where_rows_see_their_first_key_late(schedule):
    """Blocks come from the last to the first: a row may have seen no key yet, or only small ones."""
    for seq_q, seq_kv in ((600, 1000), (129, 640)):
        q, k, v = fresh(1, 2, seq_q, seq_kv, 128, spread=128.0)
        output = attention(q, k, v, window_size=(40, 0), schedule=SCHEDULES / f"{schedule}.yaml")
        check(output, q, k, v, window=(40, 0))


# --- grouped heads, and sizes of 0 -----------------------------------------------------------------------------------


# Heads of Q, and of K and V: ratios that the matrix test has not.
RATIOS = ((16, 2), (7, 1), (64, 1))


def grouped(batch: int, heads: int, heads_kv: int, seq_q: int, seq_kv: int) -> Tensors:
    return fresh(batch, heads, seq_q, seq_kv, 128, dtype="bfloat16", heads_kv=heads_kv)


def check_grouped(q, k, v, *, causal: bool, **options) -> None:
    """Checks that the output is right, has q's shape and is 0 in rows that see no key."""
    # Memory that nothing has written is not zero by chance.
    torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
    output = attention(q, k, v, causal=causal, **options)
    assert output.shape == q.shape and output.is_contiguous() and output.dtype == q.dtype
    check(output, q, k, v, causal=causal)
    hidden = Rows.of(CAUSAL if causal else FULL, q.shape[2], k.shape[2]).hidden
    assert not output[:, :, :hidden].any()


@pytest.mark.parametrize("name,causal", [("best", False), ("best_causal", True), ("seed", True)])
@pytest.mark.parametrize("heads,heads_kv", RATIOS)
def test_other_ratios_of_heads(heads, heads_kv, name, causal):
    # More tiles than the GPU has SMs, so that a block works on several heads.
    for batch, seq_q, seq_kv in ((2, 290, 333), (1, 1000, 1023)):
        check_grouped(*grouped(batch, heads, heads_kv, seq_q, seq_kv), causal=causal, schedule=name)


def test_sections_of_grouped_heads_whose_keys_fill_the_l2_cache():
    # K and V of a head have 8 MB, so that a section has four heads of them.
    path = SCHEDULES / "experiments/causal/sections.yaml"
    check_grouped(*grouped(1, 18, 6, 300, 16_384), causal=True, schedule=path)


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_of_fixed_sizes(causal):
    check_grouped(*grouped(2, 40, 8, 150, 260), causal=causal, specialize=True)
    check_grouped(*grouped(2, 40, 8, 260, 150), causal=causal, specialize=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "of_q,of_k",
    [
        ((0, 4, 8, 64), (0, 2, 8, 64)),
        ((2, 0, 8, 64), (2, 0, 8, 64)),
        ((2, 4, 0, 64), (2, 2, 8, 64)),
        ((2, 4, 0, 64), (2, 2, 0, 64)),
        ((2, 4, 8, 64), (2, 2, 0, 64)),
        ((2, 4, 1000, 128), (2, 4, 0, 128)),
    ],
)
def test_sizes_of_zero_give_an_empty_output_or_zeros(of_q, of_k, causal):
    q, k, v = (torch.randn(size, device="cuda").half() for size in (of_q, of_k, of_k))
    torch.full(of_q, float("nan"), dtype=q.dtype, device="cuda")
    output = attention(q, k, v, causal=causal)
    assert output.shape == q.shape and output.dtype == q.dtype and output.is_contiguous() and not output.any()


def test_keys_are_not_repeated_in_memory():
    q, k, v = grouped(4, 64, 1, 128, 8192)
    attention(q, k, v)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = attention(q, k, v)
    assert torch.cuda.max_memory_allocated() - before < output.nbytes + k.nbytes
