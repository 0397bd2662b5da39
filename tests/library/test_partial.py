"""`merge` puts together attention over parts of the keys: it gives attention over all of them."""

from __future__ import annotations

import math

import pytest
import torch

from tl_attention import InputError, merge
from tl_attention.lab.oracle.reference import attention_fp64, compare, lse_fp64, make_inputs
from tl_attention.problem.mask import FULL
from tl_attention.problem.shape import DTYPES, AttentionShape


def parts(q, k, v, lengths, scale):
    """Returns (outputs, LSEs) over so many keys each, with outputs in the inputs' dtype, as a kernel gives them."""
    pieces = list(zip(k.split(lengths, dim=2), v.split(lengths, dim=2), strict=True))
    outputs = [attention_fp64(q, k, v, mask=FULL, scale=scale).to(q.dtype) for k, v in pieces]
    lses = [lse_fp64(q, k, mask=FULL, scale=scale).float() for k, _ in pieces]
    return torch.stack(outputs), torch.stack(lses)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[200], [1, 199], [64, 64, 72], [3] * 60 + [20]], ids=len)
def test_split_over_keys_is_the_whole(dtype, lengths):
    q, k, v = make_inputs(AttentionShape(2, 3, 37, 200, 64, dtype), seed=len(lengths))
    outputs, lses = parts(q, k, v, lengths, 0.3)
    output, lse = merge(outputs, lses)
    assert (output.shape, output.dtype) == (q.shape, q.dtype)
    assert (lse.shape, lse.dtype) == (q.shape[:3], torch.float32)
    exact = attention_fp64(q, k, v, mask=FULL, scale=0.3)
    # Each part was rounded once, and so is their sum.
    error = compare(output, exact, exact.to(q.dtype))
    assert error.ok, str(error)
    assert (lse - lse_fp64(q, k, mask=FULL, scale=0.3)).abs().max() < 1e-5


def test_scores_of_any_size():
    """The sums would overflow, or vanish, by themselves."""
    q, k, v = make_inputs(AttentionShape(1, 1, 20, 90, 64, "bfloat16"), seed=6, spread=128.0)
    outputs, lses = parts(q, k, v, [30, 60], 1.0)
    assert lses.max() > 200
    output, lse = merge(outputs, lses)
    exact = attention_fp64(q, k, v, mask=FULL, scale=1.0)
    assert compare(output, exact, exact.to(q.dtype)).ok
    assert torch.allclose(lse.double(), lse_fp64(q, k, mask=FULL, scale=1.0), rtol=1e-6)


def test_rows_that_see_no_key_of_some_or_of_all_parts():
    q, k, v = make_inputs(AttentionShape(1, 2, 8, 30, 64, "float16"), seed=7)
    outputs, lses = parts(q, k, v, [10, 20], 0.2)
    lses[0, :, :, 2:] = -math.inf
    lses[1, :, :, 5:] = -math.inf
    # Whatever a part has there.
    outputs[0, :, :, 2:] = math.nan
    outputs[1, :, :, 5:] = math.inf
    output, lse = merge(outputs, lses)
    assert torch.equal(output[:, :, 2:5], outputs[1, :, :, 2:5]) and torch.equal(lse[:, :, 2:5], lses[1, :, :, 2:5])
    assert (output[:, :, 5:] == 0).all() and lse[:, :, 5:].isneginf().all()
    whole = attention_fp64(q, k, v, mask=FULL, scale=0.2)
    assert compare(output[:, :, :2], whole[:, :, :2], whole[:, :, :2].half()).ok


def test_parts_whose_sum_is_beyond_fp32_take_all_the_weight():
    generator = torch.Generator().manual_seed(9)
    outputs, lses = (torch.randn(3, 1, 1, 4, *columns, generator=generator) for columns in ((5,), ()))
    lses[1, ..., 1] = lses[1, ..., 2] = lses[2, ..., 2] = math.inf
    lses[..., 3] = -math.inf
    outputs.requires_grad_()
    lses.requires_grad_()
    output, lse = merge(outputs, lses)
    constant = torch.tensor([[0, 1, 0], [0, 0.5, 0.5], [0, 0, 0]])[..., None, None]
    weights = torch.stack([lses[..., 0].softmax(0), *constant])
    expected, of_lse = torch.einsum("rpbh,pbhrd->bhrd", weights, outputs), lses[..., 0].logsumexp(0)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(lse[..., 0], of_lse)
    assert lse[0, 0].tolist()[1:] == [math.inf, math.inf, -math.inf]
    found = torch.autograd.grad(output.square().sum() + lse[..., 0].sum(), (outputs, lses))
    reference = torch.autograd.grad(expected.square().sum() + of_lse.sum(), (outputs, lses))
    torch.testing.assert_close(found, reference)


def test_nan_stays_where_it_belongs():
    outputs, lses = torch.ones(2, 1, 1, 3, 4), torch.zeros(2, 1, 1, 3)
    outputs[1, 0, 0, 1, 2] = math.nan
    lses[0, 0, 0, 2] = math.nan
    output, lse = merge(outputs, lses)
    assert output[0, 0].isnan().tolist() == [[False] * 4, [False, False, True, False], [True] * 4]
    assert lse[0, 0].isnan().tolist() == [False, False, True]


def test_fp32_stays_fp32_and_sizes_of_zero_are_answered():
    output, lse = merge(torch.ones(2, 1, 1, 3, 4), torch.zeros(2, 1, 1, 3))
    assert output.dtype == torch.float32 and torch.allclose(lse, torch.tensor(math.log(2.0)))
    output, lse = merge(torch.ones(2, 0, 1, 3, 4), torch.zeros(2, 0, 1, 3))
    assert (output.shape, lse.shape) == ((0, 1, 3, 4), (0, 1, 3))


def of(*size: int, dtype=torch.float16) -> torch.Tensor:
    return torch.zeros(*size, dtype=dtype)


OUTPUTS, LSES = of(2, 1, 3, 4, 8), of(2, 1, 3, 4, dtype=torch.float32)
REFUSED = {
    "a list": (([OUTPUTS], LSES), r"merge: outputs is list, expected a tensor \(parts, batch, heads, seq, head_dim\)"),
    "no tensor of logarithms": ((OUTPUTS, None), "merge: lses is NoneType, expected a tensor"),
    "one part that is not stacked": (
        (OUTPUTS[0], LSES[0]),
        r"merge: outputs is \(1, 3, 4, 8\), expected \(parts, batch",
    ),
    "no parts": ((OUTPUTS[:0], LSES[:0]), r"merge: outputs is \(0, 1, 3, 4, 8\), .* at least one part"),
    "another number of parts": (
        (OUTPUTS, LSES[:1]),
        r"merge: lses is \(1, 1, 3, 4\), expected outputs' \(2, 1, 3, 4\)",
    ),
    "a dimension more": ((OUTPUTS, LSES[..., None]), r"merge: lses is \(2, 1, 3, 4, 1\), expected"),
    "integers": ((OUTPUTS.int(), LSES), "merge: outputs is torch.int32, expected floating-point numbers"),
    "half logarithms": ((OUTPUTS, LSES.half()), "merge: lses is torch.float16, expected torch.float32"),
    "another device": ((OUTPUTS, LSES.to("meta")), "merge: lses is on meta, expected outputs' cpu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_in_one_line(name):
    arguments, words = REFUSED[name]
    with pytest.raises(InputError, match=words) as error:
        merge(*arguments)
    assert "\n" not in str(error.value)
