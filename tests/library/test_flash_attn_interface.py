"""The functions of FlashAttention-3 have its arguments, layout and results, on the CPU with the fp64 reference."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from gradients import flash_on_cpu
from on_cpu import Kernels, on_cpu

from tl_attention import InputError, attention, attention_varlen
from tl_attention.flash_attn_interface import flash_attn_func, flash_attn_varlen_func
from tl_attention.op.attention import Options
from tl_attention.op.varlen import VarlenOptions

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


def heads_first() -> list[torch.Tensor]:
    return [x.transpose(1, 2) for x in dense()]


def packed() -> list:
    begins = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([0, 9, 20], dtype=torch.int32)
    return [*drawn((12, 4, 64), (20, 2, 64), (20, 2, 64)), *begins, 7, 11]


def test_the_arguments_are_flash_attention_3s() -> None:
    # Transformers passes only what it finds here: without these, dropout and sinks would be left out in silence.
    more, of_vllm = ["dropout_p", "s_aux"], ["block_table", "out", "scheduler_metadata", "fa_version"]
    assert [*inspect.signature(flash_attn_func).parameters] == [*DENSE, *more, "others"]
    packed = [*DENSE[:3], *PACKED, *DENSE[3:], *more, *of_vllm, "others"]
    assert [*inspect.signature(flash_attn_varlen_func).parameters] == packed
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_may_have_the_models_dtype(dtype) -> None:
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    found = flash_attn_func(*dense(), s_aux=sinks.to(dtype)), flash_attn_varlen_func(*packed(), s_aux=sinks.to(dtype))
    expected = attention(*dense(), layout="bshd", sinks=sinks), attention_varlen(*packed(), sinks=sinks)
    assert all(ours.equal(theirs) for ours, theirs in zip(found, expected))
    with pytest.raises(InputError, match="^attention: sinks is list, expected q's "):
        flash_attn_func(*dense(), s_aux=[0.0] * 4)


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
    "flash_attn: attention_chunk is 128, expected 0: the kernels have no other": {"attention_chunk": 128},
    "flash_attn: num_splits is 4, expected 0 or 1: the kernels have no other": {"num_splits": 4},
    "flash_attn: num_splits is True, expected 0 or 1: the kernels have no other": {"num_splits": True},
    "flash_attn: dropout_p is 0.1, expected 0.0: the kernels have no other": {"dropout_p": 0.1},
    "flash_attn: dropout_p is None, expected 0.0: the kernels have no other": {"dropout_p": None},
    "flash_attn: alibi_slopes is given, which the kernels do not have, expected None": {"alibi_slopes": torch.ones(4)},
    "flash_attn: no argument is named sm_scale: did you mean softmax_scale?": {"sm_scale": None},
    "flash_attn: deterministic is 1, expected True or False": {"deterministic": np.int64(1)},
    "attention: softcap is -1.0, expected 0, which is off, or 1e-20 to 1e+20": {"softcap": np.float32(-1)},
}
BOTH = [(flash_attn_func, dense), (flash_attn_varlen_func, packed)]


@pytest.mark.parametrize("call, inputs", BOTH)
@pytest.mark.parametrize("error", REFUSED)
def test_what_there_is_not_is_refused_in_a_line(call, inputs, error) -> None:
    with pytest.raises(InputError) as raised:
        call(*inputs(), **REFUSED[error])
    assert str(raised.value) == error


def test_a_batch_has_no_block_table() -> None:
    with pytest.raises(InputError, match="^flash_attn: block_table is given, which the kernels do not have, expected"):
        flash_attn_func(*dense(), block_table=torch.ones(1))


@pytest.mark.parametrize("call, inputs", BOTH)
def test_arguments_that_ask_for_nothing_are_taken_and_so_are_numpys_scalars(call, inputs) -> None:
    expected = call(*inputs(), 0.25, True) if call is flash_attn_func else call(*inputs(), None, None, 0.25, True)
    flash_2 = {
        "dropout_p": 0.0,
        "alibi_slopes": None,
        "block_table": None,
        "deterministic": True,
        "window_size": (-1, -1),
    }
    flash_3 = dict.fromkeys(("qv", "q_descale", "k_descale", "v_descale", "pack_gqa"))
    flash_3 |= {"attention_chunk": 0, "num_splits": 0, "sm_margin": 0}
    numpys = {"dropout_p": np.float64(0), "attention_chunk": np.int64(0), "num_splits": np.int32(1)}
    numpys |= {"softcap": np.float32(0), "deterministic": np.False_, "return_attn_probs": np.False_}
    plain = {"softmax_scale": 0.25, "causal": True}
    for options in (plain | flash_2, plain | flash_3, numpys | {"softmax_scale": np.float32(0.25), "causal": np.True_}):
        assert call(*inputs(), **options).equal(expected)


def test_the_longest_lengths_are_as_scripts_compute_them() -> None:
    *tensors, cu_q, cu_k, _, _ = packed()
    longest = ((cu[1:] - cu[:-1]).max() for cu in (cu_q, cu_k))
    assert flash_attn_varlen_func(*tensors, cu_q, cu_k, *longest).equal(flash_attn_varlen_func(*packed()))


# Calls as FlashAttention-2 has them: dropout_p, softmax_scale, causal.
ELSEWHERE = {
    (0.0,): "softmax_scale is 0.0, expected None or a number above 0",
    (0.0, None, True): "softmax_scale is 0.0, expected None or a number above 0",
    (0.1, None, True): "causal is None, expected True or False",
    (0.1, 0.25, True): "causal is 0.25, expected True or False",
    (True,): "softmax_scale is True, expected None or a number above 0",
}


@pytest.mark.parametrize("places", ELSEWHERE)
def test_places_of_flash_attention_2_are_told_with_the_keywords_to_write(places) -> None:
    hint = "places are FlashAttention-3's, without dropout_p; write dropout_p=0.0, softmax_scale=... and causal=..."
    seqused = f"seqused_q is {places[0]}, expected None or a tensor"
    for call, inputs, words in ((*BOTH[0], ELSEWHERE[places]), (*BOTH[1], seqused)):
        with pytest.raises(InputError) as raised:
            call(*inputs(), *places)
        assert str(raised.value) == f"flash_attn: {words}: {hint}"


@pytest.mark.parametrize("call, inputs", BOTH)
def test_a_compiled_call_has_no_break(call, inputs) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *given: call(*given, softmax_scale=0.25, causal=True, dropout_p=0.0, num_splits=0),
        fullgraph=True,
        backend="eager",
    )
    assert compiled(*inputs()).equal(call(*inputs(), softmax_scale=0.25, causal=True))


class Odd:
    """An Odd value answers no question."""

    def __bool__(self) -> bool:
        raise ZeroDivisionError

    __repr__ = __eq__ = __bool__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


ODD = (None, True, 1, 10**400, "1", [1, 2], 1j, np.float16(0.5), np.timedelta64(5, "s"), np.array([1, 2]), Odd())
ODD += (torch.ones(2), torch.ones((), device="meta"), torch.zeros(2, 2).to_sparse())
PLACES = [
    *((attention, heads_first, name) for name in Options.__annotations__),
    *((attention_varlen, packed, name) for name in (*VarlenOptions.__annotations__, "max_seqlen_q", "cu_seqlens_k")),
    *((flash_attn_func, dense, name) for name in (*DENSE, "dropout_p", "s_aux", "other")),
    *((flash_attn_varlen_func, packed, name) for name in (*PACKED, *DENSE, "block_table")),
]


@pytest.mark.parametrize("call, inputs, name", PLACES)
def test_an_odd_value_gives_one_line_if_not_a_result(call, inputs, name) -> None:
    names = [*inspect.signature(call).parameters]
    for value in ODD:
        given = dict(zip(names, inputs()))
        try:
            call(**given | {name: value})
        except InputError as refusal:
            assert "\n" not in str(refusal) and len(str(refusal)) < 400


def test_a_gradient_is_only_as_deterministic_as_pytorch_is_asked_for(flash_on_cpu) -> None:
    q, k, v = dense()
    with pytest.raises(InputError, match=r"^flash_attn: deterministic=True .* expected torch.use_deterministic"):
        flash_attn_func(q.requires_grad_(), k, v, deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        flash_attn_func(q, k, v, deterministic=True).sum().backward()
        # PyTorch only warns then, and gives no such gradient.
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.raises(InputError, match="deterministic=True"):
            flash_attn_func(q, k, v, deterministic=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert q.grad is not None


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_one_split_is_all_keys_at_once_and_0_as_many_as_take_least(compiled: bool, on_cpu: Kernels) -> None:
    q, k = (torch.randn(1, rows, heads, 64, dtype=torch.float16) for rows, heads in ((1, 8), (9000, 2)))
    cu_q, cu_k = (torch.tensor([0, x.shape[1]], dtype=torch.int32) for x in (q, k))
    calls: dict[str, Any] = {
        "dense": lambda **options: flash_attn_func(q, k, k, **options),
        "packed": lambda **options: flash_attn_varlen_func(q[0], k[0], k[0], cu_q, cu_k, 1, 9000, **options),
    }
    for name, call in calls.items():
        for options, parts in (({}, False), ({"num_splits": 0}, True)):
            on_cpu.asked.clear()
            of = torch.compile(call, backend="eager", fullgraph=True) if compiled else call
            of(**options)
            assert {variant.parts for _, variant in on_cpu.asked} == {parts}, (name, options)
