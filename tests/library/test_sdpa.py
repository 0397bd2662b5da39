"""Tests check the provider for SDPA without a GPU: registration, activation, and forwards on the fp64 reference."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest
import torch
from gradients import exact, flash_on_cpu, operators, visible
from on_cpu import launches, on_cpu
from torch.nn import attention as registry
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from tl_attention import InputError, register_sdpa
from tl_attention.lab.oracle.reference import attention_and_lse, make_inputs
from tl_attention.op import checks
from tl_attention.op.backward import force_operator
from tl_attention.op.integrations import sdpa
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape

__all__ = ["flash_on_cpu", "launches", "on_cpu", "operators"]
aten = torch.ops.aten
# Those that this torch has.
REPLACED = [name for name in sdpa.REPLACED if hasattr(aten, name)]
# The one below, which the gradients of packed sequences take.
KEPT = "_flash_attention_backward"
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def restored():
    yield
    if registry.current_flash_attention_impl():
        registry.restore_flash_attention_impl()


@pytest.fixture
def through_aten(launches):
    """Registers the forwards for the CPU as activation registers them for CUDA."""
    library = sdpa.register_kernels("CPU")
    yield launches
    library._destroy()


def inputs(*size: int, dtype: str = "bfloat16", heads_kv: int | None = None) -> Tensors:
    """Makes q, k, v of a problem (batch, heads, seq_q, seq_kv, head_dim)."""
    return make_inputs(AttentionShape(*size, dtype, heads_kv=heads_kv or size[1]), seed=3, device="cpu")


def dispatched() -> dict[str, str]:
    """Returns what aten has registered for each operator that the provider has, and for the one that stays."""
    return {name: torch._C._dispatch_dump(f"aten::{name}") for name in (*REPLACED, KEPT)}


def preferred() -> tuple[bool, bool, list[int]]:
    """Says whether SDPA may choose flash and cuDNN, and in which order it looks for a backend."""
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.cudnn_sdp_enabled(), torch._C._get_sdp_priority_order()


def prefer(flash: bool, cudnn: bool, order: list[int]) -> None:
    sdpa._enable(flash=flash, cudnn=cudnn)
    torch._C._set_sdp_priority_order(order)


def test_importing_registers_and_activates_nothing():
    code = (
        "import torch, tl_attention; from tl_attention import attention; "
        "from torch.nn.attention import current_flash_attention_impl as current, list_flash_attention_impls as listed; "
        "import tl_attention.op.integrations.sdpa; print('tl_attention' in listed(), current()); "
        "tl_attention.register_sdpa(); print('tl_attention' in listed(), current())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-2:] == ["False None", "True None"]


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("flash, cudnn", [*product([True, False], repeat=2)])
@pytest.mark.parametrize("order", [[3, 1, 2, 0, 4], [1, 2, 0, 3, 4]])
def test_activation_prefers_flash_and_is_undone_exactly(gpu, flash, cudnn, order, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpu)
    monkeypatch.setattr(sdpa, "_make_first_call", lambda: None)
    ours, before, operators = preferred(), (flash, cudnn, order), dispatched()
    prefer(*before)
    try:
        name = register_sdpa()
        assert preferred() == before and dispatched() == operators
        registry.activate_flash_attention_impl(name)
        assert registry.current_flash_attention_impl() == name == "tl_attention"
        flash_first = [1, *(backend for backend in order if backend != 1)]
        assert preferred() == ((True, cudnn, flash_first) if gpu else (True, False, order))
        active = dispatched()
        assert [name for name in active if active[name] == operators[name]] == [KEPT]
        # Once more: the first activation is undone before.
        registry.activate_flash_attention_impl(name)
        registry.restore_flash_attention_impl()
        assert registry.current_flash_attention_impl() is None
        assert preferred() == before and dispatched() == operators
    finally:
        prefer(*ours)


def test_it_has_the_operators_that_torchs_own_provider_has():
    from torch.nn.attention import _fa4

    theirs = {name for name in _fa4._fa4_register_kernels.__code__.co_consts if isinstance(name, str)}
    theirs = {name for name in theirs if hasattr(aten, name)}
    assert theirs == {*REPLACED, KEPT}


@pytest.mark.parametrize("size, heads_kv", [((2, 4, 70, 90, 64), 4), ((1, 6, 33, 33, 128), 2), ((2, 2, 1, 40, 40), 1)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_what_sdpas_operator_returns(launches, size, heads_kv, scale):
    q, k, v = inputs(*size, heads_kv=heads_kv)
    output, lse, *lengths, seed, offset, debug = sdpa.sdpa_forward(q, k, v, scale=scale)
    exact = attention_and_lse(q, k, v, mask=FULL, scale=scale or q.shape[3] ** -0.5, precise=False)
    torch.testing.assert_close((output, lse), exact)
    assert lengths == [None, None, size[2], size[3]] and len(launches) == 1
    assert (seed.shape, seed.dtype, offset.shape, offset.dtype) == ((2,), torch.uint64, (), torch.uint64)
    assert debug.shape == (0,) and debug.dtype == q.dtype
    assert lse.shape == q.shape[:3] and lse.dtype == torch.float32 and lse.is_contiguous()


def test_the_output_has_the_strides_of_the_query(launches):
    whole = torch.randn(2, 50, 3, 4, 64).bfloat16()
    q, k, v = (part.transpose(1, 2) for part in whole.unbind(2))
    for query in (q, q.contiguous(), q.transpose(1, 2).contiguous().transpose(1, 2)):
        output, *_ = sdpa.sdpa_forward(query, k, v, is_causal=True)
        fake = torch.empty_like(query.to("meta"))
        assert output.stride() == fake.stride() == torch.empty_like(query).stride()
        exact, _ = attention_and_lse(query, k, v, mask=CAUSAL, scale=0.125, precise=False)
        torch.testing.assert_close(output, exact)
    assert len(launches) == 3


@pytest.mark.parametrize("causal, left, right", [(False, None, None), (True, -1, -1), (False, 5, 2), (True, 7, None)])
def test_the_operators_below_take_another_layout_and_windows(launches, causal, left, right):
    q, k, v = inputs(2, 4, 60, 60, 64, heads_kv=2)
    sides = [None if side in (None, -1) else side for side in (left, right)]
    mask = Mask(sides[0], 0 if causal else sides[1])
    exact, exact_lse = attention_and_lse(q, k, v, mask=mask, scale=0.125, precise=False)
    bshd = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    rest, options = (None, None, 60, 60, 0.0, causal, False), {"window_size_left": left, "window_size_right": right}
    output, lse, *_ = sdpa.flash_forward(*bshd, *rest, **options, alibi_slopes=None)
    torch.testing.assert_close((output.transpose(1, 2), lse), (exact, exact_lse))
    assert output.is_contiguous()
    mine = torch.empty_like(bshd[0])
    assert sdpa.flash_forward_into(mine, *bshd, *rest, **options).equal(lse) and mine.equal(output)
    assert len(launches) == 2


REFUSED = {
    "sdpa: dropout_p is 0.1, which the kernels do not have, expected none": {"dropout_p": 0.1},
    "sdpa: return_debug_mask is True, which the kernels do not have, expected none": {"return_debug_mask": True},
    "attention: scale is -1.0, expected a number from 2^-126 to 2.35e+38": {"scale": -1.0},
    "sdpa: a causal mask or a window of 20 queries and 30 keys, expected as many keys as queries: SDPA lets them begin "
    "together, the kernels let them end together": {"is_causal": True},
}


@pytest.mark.parametrize("error", REFUSED)
def test_arguments_that_are_refused(launches, error):
    with pytest.raises(InputError) as raised:
        sdpa.sdpa_forward(*inputs(1, 2, 20, 30, 64), **REFUSED[error])
    assert str(raised.value) == error and not launches


@pytest.mark.parametrize(
    "error, spoil",
    [
        ("attention: dtype 'float32' is not supported, expected one of ('float16', 'bfloat16')", lambda x: x.float()),
        ("sdpa: there are no keys, expected at least one", lambda x: x[:, :, :0]),
    ],
)
def test_tensors_that_are_refused(launches, error, spoil):
    with pytest.raises(InputError) as raised:
        sdpa.sdpa_forward(*map(spoil, inputs(1, 2, 20, 20, 64)))
    assert str(raised.value) == error and not launches


def test_another_head_dim_of_v_is_refused_as_the_backward_has_none(launches):
    q, k, v = inputs(1, 2, 20, 20, 64)
    with pytest.raises(InputError, match=r"sdpa: value has head_dim 32, expected query's 64"):
        sdpa.sdpa_forward(q, k, v[..., :32])
    assert not launches


@pytest.mark.parametrize("name", ["seqused_k", "block_table", "alibi_slopes"])
def test_pages_of_a_batch_and_slopes_are_refused(launches, name):
    bshd = [x.transpose(1, 2) for x in inputs(1, 2, 20, 20, 64)]
    given = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(InputError, match=f"sdpa: {name} is a tensor, which the kernels do not have, expected none"):
        sdpa.flash_forward(*bshd, None, None, 20, 20, 0.0, False, False, **{name: given})
    assert not launches


def test_as_many_splits_as_one_are_none(launches):
    bshd = [x.transpose(1, 2) for x in inputs(1, 2, 20, 20, 64)]
    rest = (None, None, 20, 20, 0.0, False, False)
    outputs = [sdpa.flash_forward(*bshd, *rest, num_splits=splits)[0] for splits in (None, 0, 1)]
    assert outputs[0].equal(outputs[1]) and outputs[0].equal(outputs[2])
    with pytest.raises(InputError, match="sdpa: num_splits is 2, which the kernels do not have, expected none"):
        sdpa.flash_forward(*bshd, *rest, num_splits=2)


def test_another_gpu_is_refused(launches, monkeypatch):
    def refuse(device: torch.device) -> None:
        raise InputError("device: NVIDIA A100 has compute capability 8.0, expected 9.0")

    monkeypatch.setattr(checks, "checked_card", refuse)
    with pytest.raises(InputError, match=r"^device: NVIDIA A100"):
        sdpa.sdpa_forward(*inputs(1, 2, 20, 20, 64))
    assert not launches


@pytest.mark.parametrize("causal", [False, True])
def test_through_aten_its_gradients_come_from_the_output_and_the_lse_of_the_kernel(through_aten, operators, causal):
    """Autograd gives output and LSE to the backward, whose operator is chosen as that of `attention` is."""
    tensors = [x.requires_grad_() for x in inputs(2, 4, 70, 70, 64, heads_kv=2)]
    grad = torch.randn(tensors[0].shape, generator=torch.Generator().manual_seed(3)).bfloat16()
    wanted = exact(*tensors, grad, visible(70, 70, right=0 if causal else -1), 0.2)
    with force_operator(None):
        output, *_ = aten._scaled_dot_product_flash_attention(*tensors, 0.0, causal, scale=0.2)
        found = torch.autograd.grad(output, tensors, grad)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=0.03, rtol=0.03)
    assert operators.taken == ["cudnn"] and len(through_aten) == 1


def test_dropout_of_a_forward_that_was_pytorchs_is_refused_by_the_backward(operators):
    q, k, v = inputs(1, 2, 20, 20, 64)
    lse, state = q.new_zeros(1, 2, 20, dtype=torch.float32), q.new_zeros(2, dtype=torch.uint64)
    with pytest.raises(InputError, match="^sdpa: dropout_p is 0.5, which the kernels do not have, expected none$"):
        sdpa.sdpa_backward(q, q, k, v, q, lse, None, None, 20, 20, 0.5, False, state, state)
    assert not operators.taken


def test_through_aten_a_refusal_is_our_error(through_aten):
    with pytest.raises(InputError, match=r"^sdpa: dropout_p is 0.5"):
        aten._scaled_dot_product_flash_attention(*inputs(1, 2, 20, 20, 64), 0.5)
    assert not through_aten
    # PyTorch's checks of what a kernel returns agree: shapes, strides and dtypes are those of its own meta function.
    q, k, v = inputs(1, 2, 20, 30, 64)
    meta = aten._scaled_dot_product_flash_attention(*(x.to("meta") for x in (q, k, v)))
    real = aten._scaled_dot_product_flash_attention(q, k, v)
    for theirs, ours in zip(meta, real, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert (theirs.shape, theirs.dtype, theirs.stride()) == (ours.shape, ours.dtype, ours.stride())
    assert real[0].equal(sdpa.sdpa_forward(q, k, v)[0]) and len(through_aten) == 2


# --- packed sequences -------------------------------------------------------------------------------------------------

LENGTHS = ((5, 9), (0, 7), (6, 6), (8, 3))


def packed(heads_kv: int = 4, lengths=LENGTHS) -> tuple[Tensors, tuple[torch.Tensor, torch.Tensor], tuple[int, int]]:
    """Makes (q, k, v), where the sequences begin, and the longest lengths, as `varlen_attn` takes them."""
    rows, keys = (sum(of) for of in zip(*lengths))
    sizes = ((rows, 4), (keys, heads_kv), (keys, heads_kv))
    q, k, v = (torch.randn(*size, 64, generator=torch.Generator().manual_seed(6)).bfloat16() for size in sizes)
    begins = tuple(torch.tensor([0, *of], dtype=torch.int32).cumsum(0, dtype=torch.int32) for of in zip(*lengths))
    return (q, k, v), begins, tuple(max(of) for of in zip(*lengths))


def each(tensors: Tensors, begins, mask: Mask, used=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output and the LSE of packed sequences, from the reference; +inf where a query sees no key."""
    found = []
    for n in range(len(begins[0]) - 1):
        of_q, of_k = (slice(*of[n : n + 2].tolist()) for of in begins)
        of_k = of_k if used is None else slice(of_k.start, of_k.start + int(used[n]))
        q, k, v = (x[of].transpose(0, 1)[None] for x, of in zip(tensors, (of_q, of_k, of_k)))
        found.append(attention_and_lse(q, k, v, mask=mask, scale=0.125, precise=False))
    lse = torch.cat([lse[0] for _, lse in found], 1)
    return torch.cat([output[0].transpose(0, 1) for output, _ in found]), lse.masked_fill(lse.isneginf(), torch.inf)


@pytest.mark.parametrize("heads_kv", [4, 2])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0), (3, 1), (2, -1)])
def test_varlen_attn_runs_on_the_kernels(through_aten, window, heads_kv):
    tensors, begins, longest = packed(heads_kv)
    mask = Mask(*(None if side < 0 else side for side in window))
    options = {"return_aux": AuxRequest(lse=True), "window_size": window}
    output, lse = varlen_attn(*tensors, *begins, *longest, **options, enable_gqa=heads_kv < 4, num_splits=1)
    torch.testing.assert_close((output, lse), each(tensors, begins, mask))
    assert len(through_aten) == 1 and lse.shape == (4, 19)


def test_varlen_attn_with_used_keys_and_into_a_tensor(through_aten):
    from torch.nn.attention.varlen import varlen_attn_out

    tensors, begins, longest = packed()
    used = torch.tensor([4, 0, 6, 1], dtype=torch.int32)
    exact, _ = each(tensors, begins, FULL, used)
    torch.testing.assert_close(varlen_attn(*tensors, *begins, *longest, seqused_k=used), exact)
    mine = torch.empty_like(tensors[0])
    varlen_attn_out(mine, *tensors, *begins, *longest, seqused_k=used)
    torch.testing.assert_close(mine, exact)
    assert len(through_aten) == 2


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 1)])
def test_gradients_of_varlen_attn_are_those_of_each_sequence(through_aten, flash_on_cpu, window):
    tensors, begins, longest = packed(lengths=((5, 9), (6, 6), (8, 3)))
    tensors = tuple(x.requires_grad_() for x in tensors)
    output = varlen_attn(*tensors, *begins, *longest, window_size=window)
    grad = torch.randn_like(output)
    found = torch.autograd.grad(output, tensors, grad)
    for n in range(3):
        of_q, of_k = (slice(*of[n : n + 2].tolist()) for of in begins)
        q, k, v, dO = (x[of].transpose(0, 1)[None] for x, of in zip((*tensors, grad), (of_q, of_k, of_k, of_q)))
        wanted = exact(q, k, v, dO, visible(q.shape[2], k.shape[2], *window), 0.125)
        for ours, theirs, of in zip(found, wanted, (of_q, of_k, of_k)):
            torch.testing.assert_close(ours[of].double(), theirs[0].transpose(0, 1), atol=0.03, rtol=0.03)
    assert len(through_aten) == 1


def test_a_gradient_of_another_mask_is_refused(through_aten):
    """PyTorch's backward takes the open right side for one as long as the keys."""
    tensors, begins, longest = packed()
    with pytest.raises(InputError) as raised:
        varlen_attn(tensors[0].requires_grad_(), *tensors[1:], *begins, *longest, window_size=(2, -1))
    words = "attention: an input requires a gradient, and with window_size (2, -1) there is no backward"
    assert str(raised.value).startswith(words)
    assert not through_aten
