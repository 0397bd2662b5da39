"""The gradient of `attention`, by PyTorch's own FlashAttention backward: which calls have one, and the operator.

FlashAttention-2's masks are aligned at the bottom right, as ours are, and its LSE is ours. A row that sees no key never
reaches it: queries and keys end together, so without the first rows the others keep their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op.arguments import Given
from tl_attention.op.in_memory import BHSD
from tl_attention.op.rows import Rows
from tl_attention.problem.features import INPUTS
from tl_attention.problem.mask import CAUSAL, Mask
from tl_attention.problem.window import masked, sides

NAME = "tl_attention::backward"
SCHEMA = (
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor output, Tensor lse, *, bool causal, float? scale, "
    "int[2] window_size, str layout) -> (Tensor, Tensor, Tensor)"
)


def forward_only(what: str, instead: str) -> InputError:
    """What a call is told that has no backward, but an input that requires a gradient."""
    return InputError(
        f"attention: an input requires a gradient, and with {what} there is no backward: call it under "
        f"torch.no_grad(), or {instead}"
    )


def check_has_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Given,
    *,
    causal: bool,
    scale: float | None,
    window_size: Sequence[int],
    layout: str,
) -> None:
    """Raise InputError for arguments that are right, but have no backward: any scale has one."""
    for feature in INPUTS:
        value = given[feature.word]
        there = bool(value) if feature.is_number else value is not None
        if there and not feature.has_gradient:
            raise forward_only(
                f"{feature.word} {value}" if feature.is_number else feature.words, f"without {feature.words}"
            )
    if q.shape[3] != v.shape[3]:
        raise forward_only(f"head_dim {q.shape[3]} and v's {v.shape[3]}", "with equal ones")
    seq_q, seq_kv = (_bshd(x, layout).shape[1] for x in (q, k))
    if not _masks_alike(masked(causal, window_size), seq_q, seq_kv):
        what = f"window_size {tuple(window_size)}, {seq_q} queries and {seq_kv} keys"
        raise forward_only(what, "with no more queries than keys")


def _masks_alike(mask: Mask, seq_q: int, seq_kv: int) -> bool:
    """Whether FlashAttention's backward hides what the mask hides.

    It takes a right side of seq_kv or more for an open one, and an open one beside a left side for seq_kv. That is the
    same unless queries stand before the first key.
    """
    if mask.right is None and mask.left is None:
        return True
    return seq_q <= seq_kv or mask.right == 0 or (mask.right is not None and mask.right < seq_kv)


def _flash(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, mask: Mask, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch's: tensors (batch, seq, heads, head_dim) as strided as they like, LSE (batch, heads, seq_q) contiguous."""
    # Without dropout nobody reads the state of its generator: made as PyTorch's own forward does.
    rng_state, unused = (q.new_empty(shape, dtype=torch.uint64) for shape in ((2,), ()))
    left, right = sides(mask)
    options = {"scale": scale, "window_size_left": left, "window_size_right": right}
    lengths = (None, None, q.shape[1], k.shape[1])
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, output, lse, *lengths, 0.0, mask == CAUSAL, rng_state, unused, **options
    )


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window_size: list[int],
    layout: str,
) -> tuple[Tensor, ...]:
    """The gradients of q, k and v, each in its layout."""
    grad, q, k, v, output = (_bshd(x, layout) for x in (grad, q, k, v, output))
    rows, mask = Rows.seen(masked(causal, window_size), q.shape[1], k.shape[1])
    if 0 in (q.shape[0], q.shape[2], rows.count):
        found = tuple(torch.zeros_like(x) for x in (q, k, v))
    elif rows.hidden:
        seen = (x[:, rows.hidden :] for x in (grad, q, k, v, output))
        grad, q_seen, _, _, output = seen
        part, *of_keys = _flash(grad, q_seen, k, v, output, rows.computed(lse).contiguous(), mask, scale)
        whole = torch.zeros_like(q)
        whole[:, rows.hidden :] = part
        found = (whole, *of_keys)
    else:
        found = _flash(grad, q, k, v, output, lse, mask, scale)
    return tuple(_bshd(x, layout) for x in found)


def _fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, *, layout: str, **options: object
) -> tuple[Tensor, ...]:
    return tuple(_bshd(torch.empty_like(_bshd(x, layout)), layout) for x in (q, k, v))


def _bshd(tensor: Tensor, layout: str) -> Tensor:
    """(batch, seq, heads, head_dim) of a tensor of the layout, and the other way round: a view."""
    return tensor.transpose(1, 2) if layout == BHSD else tensor


def _no_second(ctx: object, *grads: Tensor) -> None:
    raise InputError("attention: the gradient of a gradient is asked for, and there is none")


torch.library.define(NAME, SCHEMA)
torch.library.impl(NAME, "CompositeExplicitAutograd")(_backward)
torch.library.register_fake(NAME)(_fake)
torch.library.register_autograd(NAME, _no_second)
