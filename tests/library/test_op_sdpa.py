"""`F.scaled_dot_product_attention` of unchanged modules runs on this package's kernels, on a Hopper GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from counted import count_launches
from on_gpu import check
from torch import Tensor, nn
from torch.nn.attention import (
    SDPBackend,
    activate_flash_attention_impl,
    current_flash_attention_impl,
    restore_flash_attention_impl,
    sdpa_kernel,
)
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from tl_attention import InputError, register_sdpa
from tl_attention.flash_attn_interface import flash_attn_func, flash_attn_varlen_func
from tl_attention.problem.variant import Variant

pytestmark = pytest.mark.gpu


@pytest.fixture
def launches(monkeypatch) -> Iterator[list[Variant]]:
    """Yields a list with one entry for each launch of a kernel, while the provider is active."""
    found = count_launches(monkeypatch)
    torch.cuda.init()
    activate_flash_attention_impl(register_sdpa())
    yield found
    if current_flash_attention_impl():
        restore_flash_attention_impl()


class Block(nn.Module):
    """A block has attention with grouped heads as in models: projections, SDPA, a projection."""

    def __init__(self, heads: int, heads_kv: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.heads_kv, self.head_dim = heads, heads_kv, head_dim
        width = heads * head_dim
        self.qkv = nn.Linear(width, (heads + 2 * heads_kv) * head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        parts = self.qkv(x).view(batch, seq, -1, self.head_dim).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.heads_kv, self.heads_kv], dim=1)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(found.transpose(1, 2).reshape(batch, seq, -1))


def tensors(*size: int, heads_kv: int | None = None, keys: int | None = None) -> list[Tensor]:
    """Makes q, k, v for (batch, heads, seq, head_dim)."""
    batch, heads, seq, head_dim = size
    kv = (batch, heads_kv or heads, keys or seq, head_dim)
    return [torch.randn(s, device="cuda", dtype=torch.bfloat16) + 0.2 for s in (size, kv, kv)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_output_is_within_the_budget_and_one_kernel_of_ours_ran(launches, head_dim, causal):
    for heads_kv in (8, 2):
        q, k, v = tensors(2, 8, 517, head_dim, heads_kv=heads_kv)
        before = len(launches)
        output = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        assert len(launches) == before + 1
        with sdpa_kernel(SDPBackend.MATH):
            check(output, q, k, v, causal=causal)


def test_after_restoring_pytorchs_own_runs(launches):
    q, k, v = tensors(1, 4, 300, 64)
    F.scaled_dot_product_attention(q, k, v)
    restore_flash_attention_impl()
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v)
    F.scaled_dot_product_attention(q, k, v)
    assert len(launches) == 1


def test_what_is_not_ours(launches):
    q, k, v = tensors(1, 4, 300, 64, keys=400)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(InputError, match="sdpa: dropout_p is 0.1"):
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    with pytest.raises(InputError, match="sdpa: a causal mask or a window of 300 queries and 400 keys"):
        torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    # PyTorch does not choose flash here, and computes it otherwise, aligned at the top left.
    found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    wanted = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(found.double(), wanted, atol=0.02, rtol=0.02)
    assert not launches


def test_a_call_with_a_mask_runs_on_the_backend_that_it_has_without_us(launches):
    q, k, v = tensors(1, 4, 256, 64)
    mask = torch.ones(256, 256, dtype=torch.bool, device="cuda").tril()
    call = torch._fused_sdp_choice
    active = [call(q, k, v, attn_mask=mask), call(q, k, v), call(q.float(), k.float(), v.float())]
    restore_flash_attention_impl()
    own = [call(q, k, v, attn_mask=mask), call(q, k, v), call(q.float(), k.float(), v.float())]
    flash, cudnn = int(SDPBackend.FLASH_ATTENTION), int(SDPBackend.CUDNN_ATTENTION)
    assert active[1] == flash and [*map(int, own[:2])] == [cudnn, cudnn]
    assert (active[0], active[2]) == (own[0], own[2])


def gradients(block: Block, x: Tensor, grad: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    return list(torch.autograd.grad(block(x), [x, *block.parameters()], grad))


def beside_flash(
    launches: list[Variant], step: Callable[[], list[Tensor]], in_fp64: Callable[[], list[Tensor]]
) -> None:
    """Compares a step's gradients with PyTorch's flash and with fp64; the step launches one kernel, the others none."""
    ours = step()
    assert len(launches) == 1
    restore_flash_attention_impl()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        flash = step()
    with sdpa_kernel(SDPBackend.MATH):
        exact = in_fp64()
    assert len(launches) == 1
    check_gradients(ours, flash, exact)


def check_gradients(ours: list[Tensor], flash: list[Tensor], exact: list[Tensor]) -> None:
    """Checks that gradients are at most twice as far from fp64 as those of PyTorch's flash."""
    for number, (own, theirs, wanted) in enumerate(zip(ours, flash, exact, strict=True)):
        own_error, their_error = ((found.double() - wanted).norm() for found in (own, theirs))
        assert own_error <= 2 * their_error, f"gradient {number}: {own_error:.3g}, flash's {their_error:.3g}"
        assert their_error <= 0.05 * wanted.norm()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_kv, head_dim", [(8, 64), (2, 128), (4, 96)])
def test_gradients_are_as_near_to_fp64_as_flashs(launches, heads_kv, head_dim, causal):
    q, k, v = (x.requires_grad_() for x in tensors(2, 8, 333, head_dim, heads_kv=heads_kv))
    grad = torch.randn_like(q)

    def step(*inputs: Tensor) -> list[Tensor]:
        output = F.scaled_dot_product_attention(*inputs, is_causal=causal, enable_gqa=True)
        return list(torch.autograd.grad(output, inputs, grad.to(output.dtype)))

    beside_flash(launches, lambda: step(q, k, v), lambda: step(q.double(), k.double(), v.double()))


def test_a_training_step_of_an_unchanged_module(launches):
    block = Block(8, 2, 64).cuda().bfloat16()
    x, grad = (torch.randn(2, 700, 512, device="cuda").bfloat16() for _ in range(2))
    beside_flash(
        launches, lambda: gradients(block, x, grad), lambda: gradients(block.double(), x.double(), grad.double())
    )


def test_a_compiled_module(launches):
    block = Block(4, 2, 64).cuda().bfloat16()
    x, grad = (torch.randn(1, 256, 256, device="cuda").bfloat16() for _ in range(2))
    eager = gradients(block, x, grad)
    compiled = torch.compile(block, fullgraph=True)
    inputs = x.detach().requires_grad_()
    found = torch.autograd.grad(compiled(inputs), [inputs, *block.parameters()], grad)
    assert len(launches) == 2
    torch.testing.assert_close(list(found), eager, atol=0.05, rtol=0.05)


# --- packed sequences -------------------------------------------------------------------------------------------------

LENGTHS = (300, 1, 517, 64, 128, 129)


def packed(heads_kv: int = 8) -> tuple[list[Tensor], Tensor]:
    """Makes q, k, v (rows, heads, head_dim) of sequences of these lengths, and where they begin."""
    torch.manual_seed(3)
    total = sum(LENGTHS)
    sizes = ((total, 8, 128), (total, heads_kv, 128), (total, heads_kv, 128))
    tensors = [(torch.randn(size, device="cuda", dtype=torch.bfloat16) + 0.2).requires_grad_() for size in sizes]
    return tensors, torch.tensor([0, *LENGTHS], device="cuda").cumsum(0).to(torch.int32)


def in_fp64(q: Tensor, k: Tensor, v: Tensor, seen: Callable[[Tensor], Tensor]) -> Tensor:
    """Computes attention of each packed sequence in fp64; `seen` makes a mask of query number minus key number."""
    outputs = []
    for one, two, three in zip(*(x.double().split(LENGTHS) for x in (q, k, v))):
        places = torch.arange(len(one), device="cuda")
        mask = seen(places[:, None] - places)
        parts = (x.transpose(0, 1) for x in (one, two, three))
        outputs.append(F.scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=True).transpose(0, 1))
    return torch.cat(outputs)


WINDOWS = {(-1, -1): lambda behind: behind > -9999, (-1, 0): lambda behind: behind >= 0,
           (70, 3): lambda behind: (behind <= 70) & (behind >= -3)}  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
def test_varlen_attn_of_this_torch_forward_and_backward(launches, window):
    tensors, begins = packed()
    longest = max(LENGTHS)
    options = {"window_size": window, "return_aux": AuxRequest(lse=True)}
    grad = torch.randn(sum(LENGTHS), 8, 128, device="cuda", dtype=torch.bfloat16)

    def step() -> tuple[list[Tensor], Tensor]:
        output, lse = varlen_attn(*tensors, begins, begins, longest, longest, **options)
        return [output, *torch.autograd.grad(output, tensors, grad)], lse

    ours, lse = step()
    assert [variant.packed for variant in launches] == [True]
    restore_flash_attention_impl()
    theirs, their_lse = step()
    assert len(launches) == 1
    wide = [x.detach().double().requires_grad_() for x in tensors]
    output = in_fp64(*wide, WINDOWS[window])
    exact = [output, *torch.autograd.grad(output, wide, grad.double())]
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert (mine - right).norm() <= 2 * (other - right).norm()
    torch.testing.assert_close(lse, their_lse, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_of_jagged_tensors(launches, causal):
    tensors, _ = packed()
    offsets = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0)
    q, k, v = (torch.nested.nested_tensor_from_jagged(x.detach(), offsets).transpose(1, 2) for x in tensors)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).values()
    assert [variant.packed for variant in launches] == [True]
    exact = in_fp64(*tensors, WINDOWS[-1, 0 if causal else -1])
    assert (found - exact).norm() <= 5e-3 * exact.norm()


def test_the_functions_of_flash_attention_3(launches):
    tensors, begins = packed(heads_kv=2)
    with torch.no_grad():
        found = flash_attn_varlen_func(*tensors, begins, begins, max(LENGTHS), max(LENGTHS), causal=True)
        exact = in_fp64(*tensors, WINDOWS[-1, 0])
        assert (found - exact).norm() <= 5e-3 * exact.norm()
        q, k, v = (x[301:818][None] for x in tensors)
        alone, lse = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (alone[0] - exact[301:818]).norm() <= 5e-3 * exact[301:818].norm() and lse.shape == (1, 8, 517)
    assert [variant.packed for variant in launches] == [True, False]
