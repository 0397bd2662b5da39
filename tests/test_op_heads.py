"""`attention(q, k, v)` takes grouped heads of any lengths, also 0, on a Hopper GPU."""

from __future__ import annotations

import pytest
import torch
from mutations import SCHEDULES
from on_gpu import Tensors, check, fresh

from tl_attention import attention
from tl_attention.op.rows import Rows
from tl_attention.problem.mask import CAUSAL, FULL

# Heads of Q, and of K and V: ratios that the matrix test has not.
RATIOS = ((16, 2), (7, 1), (64, 1))


def grouped(batch: int, heads: int, heads_kv: int, seq_q: int, seq_kv: int) -> Tensors:
    return fresh(batch, heads, seq_q, seq_kv, 128, dtype="bfloat16", heads_kv=heads_kv)


def check_call(q, k, v, *, causal: bool, **options) -> None:
    """Checks that the output is right, has q's shape and is 0 in rows that see no key."""
    # Memory that nothing has written is not zero by chance.
    torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
    output = attention(q, k, v, causal=causal, **options)
    assert output.shape == q.shape and output.is_contiguous() and output.dtype == q.dtype
    check(output, q, k, v, causal=causal)
    hidden = Rows.of(CAUSAL if causal else FULL, q.shape[2], k.shape[2]).hidden
    assert not output[:, :, :hidden].any()


@pytest.mark.gpu
@pytest.mark.parametrize("name,causal", [("best", False), ("best_causal", True), ("seed", True)])
@pytest.mark.parametrize("heads,heads_kv", RATIOS)
def test_other_ratios_of_heads(heads, heads_kv, name, causal):
    # More tiles than the GPU has SMs, so that a block works on several heads.
    for batch, seq_q, seq_kv in ((2, 290, 333), (1, 1000, 1023)):
        check_call(*grouped(batch, heads, heads_kv, seq_q, seq_kv), causal=causal, schedule=name)


@pytest.mark.gpu
def test_sections_of_grouped_heads_whose_keys_fill_the_l2_cache():
    # K and V of a head have 8 MB, so that a section has four heads of them.
    path = SCHEDULES / "experiments/causal/sections.yaml"
    check_call(*grouped(1, 18, 6, 300, 16_384), causal=True, schedule=path)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_of_fixed_sizes(causal):
    check_call(*grouped(2, 40, 8, 150, 260), causal=causal, specialize=True)
    check_call(*grouped(2, 40, 8, 260, 150), causal=causal, specialize=True)


@pytest.mark.gpu
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


@pytest.mark.gpu
def test_keys_are_not_repeated_in_memory():
    q, k, v = grouped(4, 64, 1, 128, 8192)
    attention(q, k, v)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = attention(q, k, v)
    assert torch.cuda.max_memory_allocated() - before < output.nbytes + k.nbytes
