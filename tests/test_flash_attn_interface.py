"""The functions of FlashAttention-3 have its arguments, layout and results, on the CPU with the reference as kernels."""

from __future__ import annotations

import inspect

import pytest
import torch
from gradients import flash_on_cpu
from on_cpu import on_cpu

from tl_attention import InputError, attention, attention_varlen
from tl_attention.flash_attn_interface import flash_attn_func, flash_attn_varlen_func

__all__ = ["flash_on_cpu", "on_cpu"]
pytestmark = pytest.mark.usefixtures("on_cpu")
# As `hopper/flash_attn_interface.py` has them in August 2026, in order.
DENSE = [
    "q",
    "k",
    "v",
    "softmax_scale",
    "causal",
    "qv",
    "q_descale",
    "k_descale",
    "v_descale",
    "window_size",
    "attention_chunk",
    "softcap",
    "num_splits",
    "pack_gqa",
    "deterministic",
    "sm_margin",
    "return_attn_probs",
]
PACKED = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k"]


def drawn(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(*size, generator=generator).bfloat16() for size in sizes]


def dense() -> list[torch.Tensor]:
    return drawn((2, 12, 4, 64), (2, 20, 2, 64), (2, 20, 2, 64))


def packed() -> list:
    begins = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([0, 9, 20], dtype=torch.int32)
    return [*drawn((12, 4, 64), (20, 2, 64), (20, 2, 64)), *begins, 7, 11]


def test_the_arguments_are_flash_attention_3s() -> None:
    assert [*inspect.signature(flash_attn_func).parameters] == DENSE
    assert [*inspect.signature(flash_attn_varlen_func).parameters] == [*DENSE[:3], *PACKED, *DENSE[3:]]
    options = {name: of.default for name, of in inspect.signature(flash_attn_func).parameters.items()}
    assert (options["num_splits"], options["window_size"], options["pack_gqa"]) == (1, (-1, -1), None)


OPTIONS = [{}, {"causal": True}, {"softmax_scale": 0.3, "window_size": (3, 1)}, {"softcap": 5.0, "causal": True}]


@pytest.mark.parametrize("options", OPTIONS)
def test_they_give_what_our_own_functions_give(options) -> None:
    ours = {"scale" if name == "softmax_scale" else name: value for name, value in options.items()}
    hints = {"num_splits": 0, "pack_gqa": True, "deterministic": True, "sm_margin": 8}
    expected, expected_lse = attention(*dense(), layout="bshd", return_lse=True, **ours)
    output, lse = flash_attn_func(*dense(), return_attn_probs=True, **options, **hints)
    assert output.equal(expected) and lse.equal(expected_lse) and lse.shape == (2, 4, 12)
    assert flash_attn_func(*dense(), **options).equal(expected)
    expected, expected_lse = attention_varlen(*packed(), return_lse=True, **ours)
    output, lse = flash_attn_varlen_func(*packed(), return_attn_probs=True, **options, **hints)
    assert output.equal(expected) and lse.equal(expected_lse) and lse.shape == (4, 12)
    assert flash_attn_varlen_func(*packed(), **options).equal(expected)


def test_used_lengths() -> None:
    used = torch.tensor([4, 6], dtype=torch.int32), torch.tensor([9, 2], dtype=torch.int32)
    expected = attention_varlen(*packed(), seqused_q=used[0], seqused_k=used[1], zero_unused=True)
    output = flash_attn_varlen_func(*packed(), *used)
    assert output[:4].equal(expected[:4]) and output[5:11].equal(expected[5:11])


def test_gradients(flash_on_cpu) -> None:
    for call, of, inputs in (
        (flash_attn_func, attention, dense()),
        (flash_attn_varlen_func, attention_varlen, packed()),
    ):
        q, k, v = (x.requires_grad_() for x in inputs[:3])
        layout = {"layout": "bshd"} if of is attention else {}
        found, expected = (
            torch.autograd.grad(made.float().square().sum(), (q, k, v))
            for made in (call(*inputs, causal=True), of(*inputs, causal=True, **layout))
        )
        assert all(x.equal(y) for x, y in zip(found, expected, strict=True))


REFUSED = {
    "flash_attn: qv is given, which the kernels do not have, expected None": {"qv": torch.ones(1)},
    "flash_attn: k_descale is given, which the kernels do not have, expected None": {"k_descale": torch.ones(1)},
    "flash_attn: attention_chunk is 128, expected 0: there are no chunks": {"attention_chunk": 128},
    "flash_attn: num_splits is 4, expected 0 or 1: nothing is split": {"num_splits": 4},
}


@pytest.mark.parametrize("call, inputs", [(flash_attn_func, dense), (flash_attn_varlen_func, packed)])
@pytest.mark.parametrize("error", REFUSED)
def test_what_there_is_not_is_refused_in_a_line(call, inputs, error) -> None:
    with pytest.raises(InputError) as raised:
        call(*inputs(), **REFUSED[error])
    assert str(raised.value) == error


def test_a_gradient_is_only_as_deterministic_as_pytorch_is_asked_for(flash_on_cpu) -> None:
    q, k, v = dense()
    with pytest.raises(InputError, match=r"^flash_attn: deterministic=True .* expected torch.use_deterministic"):
        flash_attn_func(q.requires_grad_(), k, v, deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        flash_attn_func(q, k, v, deterministic=True).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert q.grad is not None
