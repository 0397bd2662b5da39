"""Computes gradients of attention in fp64, and stands in for PyTorch's FlashAttention backward on the CPU."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

OPEN = -1


def visible(seq_q: int, seq_kv: int, left: int = OPEN, right: int = OPEN) -> Tensor:
    """Says which keys a query sees, (seq_q, seq_kv), as attention() does: queries and keys end together."""
    own = torch.arange(seq_q)[:, None] + seq_kv - seq_q
    key = torch.arange(seq_kv)
    return ((left == OPEN) | (key >= own - left)) & ((right == OPEN) | (key <= own + right))


def visible_to_flash(seq_q: int, seq_kv: int, left: int, right: int) -> Tensor:
    """Says which keys a query sees, as FlashAttention-2 does: a side that alone is open becomes seq_kv, beyond every key."""
    left, right = (OPEN if side >= seq_kv else side for side in (left, right))
    if (left == OPEN) != (right == OPEN):
        left, right = (seq_kv if side == OPEN else side for side in (left, right))
    return visible(seq_q, seq_kv, left, right)


def _attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    weights = (scale * q @ k.transpose(2, 3)).masked_fill(~seen, float("-inf"))
    some = seen.any(dim=1, keepdim=True)
    return weights.masked_fill(~some, 0).softmax(dim=3).masked_fill(~some, 0) @ v


def exact(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, ...]:
    """Returns the gradients of q, k and v (batch, heads, seq, head_dim) in fp64."""
    inputs = [x.detach().double().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(_attention(*inputs, seen.to(q.device), scale), inputs, grad.double())


def _flash(
    grad, q, k, v, output, lse, cum_q, cum_k, max_q, max_k, dropout, causal, rng_state, unused, *, scale=None, finite=True,
    **window,
):  # fmt: skip
    """Computes gradients from output and LSE as FlashAttention does, in fp64. All are (batch, seq, heads, head_dim).

    Packed sequences are (rows, heads, head_dim). It writes no gradient of rows that are no sequence's.
    """
    if cum_q is not None:
        gradients = tuple(torch.full_like(x, torch.nan) for x in (q, k, v))
        for n in range(len(cum_q) - 1):
            of_q, of_k = (slice(*cum[n : n + 2].tolist()) for cum in (cum_q, cum_k))
            parts = [x[of][None] for x, of in ((grad, of_q), (q, of_q), (k, of_k), (v, of_k), (output, of_q))]
            rows, keys = parts[1].shape[1], parts[2].shape[1]
            assert rows <= max_q and keys <= max_k and not lse[:, of_q].isneginf().any()
            found = _flash(
                *parts, lse[None, :, of_q].contiguous(), None, None, rows, keys, dropout, causal, rng_state, unused,
                scale=scale, **window, finite=False,
            )  # fmt: skip
            for whole, of, part in zip(gradients, (of_q, of_k, of_k), found, strict=True):
                whole[of] = part[0]
        return gradients
    assert (cum_q, cum_k, max_q, max_k, dropout) == (None, None, q.shape[1], k.shape[1], 0.0)
    # varlen_attn passes one that has no element.
    assert (rng_state.shape, rng_state.dtype, unused.dim() < 2) == ((2,), torch.uint64, True)
    batch, seq_q, heads, head_dim = q.shape
    assert lse.shape == (batch, heads, seq_q) and lse.is_contiguous() and (lse.isfinite().all() or not finite)
    left, right = window["window_size_left"], window["window_size_right"]
    assert causal == ((left, right) == (OPEN, 0))
    scale = head_dim**-0.5 if scale is None else scale
    group = heads // k.shape[2]
    dO, Q, K, V, output = (x.transpose(1, 2).double() for x in (grad, q, k, v, output))
    K, V = (x.repeat_interleave(group, dim=1) for x in (K, V))
    seen = visible_to_flash(seq_q, k.shape[1], left, right)
    P = (scale * Q @ K.transpose(2, 3) - lse[..., None]).exp().masked_fill(~seen, 0)
    dS = P * (dO @ V.transpose(2, 3) - (dO * output).sum(dim=3, keepdim=True))
    found = scale * dS @ K, scale * dS.transpose(2, 3) @ Q, P.transpose(2, 3) @ dO
    gradients = tuple(torch.empty_like(x) for x in (q, k, v))
    for gradient, value in zip(gradients, found, strict=True):
        gradient.copy_(value.unflatten(1, (gradient.shape[2], -1)).sum(dim=2).transpose(1, 2))
    return gradients


@pytest.fixture
def flash_on_cpu() -> Iterator[None]:
    """Makes PyTorch's FlashAttention backward take CPU tensors, through its own schema."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_backward", _flash, "CPU")
        yield
