"""The arguments of `attention`, checked: one line says which is wrong, what it is, and what was expected.

Tensors are (batch, heads, seq, head_dim) here, whatever the caller's layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError, shown
from tl_attention.hardware.card import CARDS, Card, card_of
from tl_attention.op.in_memory import DIMENSIONS, check_layout, check_out, empty, other_way
from tl_attention.op.rows import Rows
from tl_attention.problem.head_dims import check_head_dim, head_size
from tl_attention.problem.mask import Mask
from tl_attention.problem.scale import scale_of
from tl_attention.problem.shape import AttentionShape, check_dtype
from tl_attention.problem.softcap import softcap_of
from tl_attention.problem.window import masked


def bhsd(tensor: Tensor, layout: str) -> Tensor:
    """(batch, heads, seq, head_dim) of a tensor; anything else as it is, for the checks of shapes to name."""
    return other_way(tensor, layout) if _is_4d(tensor) else tensor


def _is_4d(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.dim() == 4


def _of_attention(error: InputError) -> InputError:
    """What a check of numbers, which knows of no call, found in one."""
    return InputError(f"attention: {str(error).removeprefix('shape: ')}")


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise InputError unless these tensors (batch, heads, seq, head_dim) go together."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not _is_4d(tensor):
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(f"attention: {name} is {found}, expected a tensor (batch, heads, seq, head_dim)")
        if tensor.device != q.device or tensor.dtype != q.dtype:
            raise InputError(
                f"attention: {name} is {tensor.dtype} on {tensor.device}, expected q's {q.dtype} on {q.device}"
            )
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise InputError(
            f"attention: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not match, "
            "expected q (batch, heads, seq_q, head_dim) and k, v (batch, heads_kv, seq_kv, head_dim), where v's head_dim "
            "may be another"
        )
    heads, heads_kv = q.shape[1], k.shape[1]
    if heads % heads_kv if heads_kv else heads:
        raise InputError(f"attention: q has {heads} heads, expected a multiple of the {heads_kv} that k and v have")


def checked_problem(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, softcap: float = 0.0, sinks: bool = False, lse: bool = False
) -> tuple[Rows, AttentionShape | None]:
    """Which rows of the output a kernel computes, and that problem; None if there is nothing to compute."""
    check_tensors(q, k, v)
    batch, heads, seq_q, head_dim = q.shape
    heads_kv, seq_kv = k.shape[1:3]
    rows, mask = Rows.seen(mask, seq_q, seq_kv)
    empty_call = 0 in (batch, heads, rows.count)
    # Where there is nothing to compute, the rest is checked all the same.
    sizes, heads_kv = ((1, 1, 1, 1), 1) if empty_call else ((batch, heads, rows.count, seq_kv), heads_kv)
    shape = _shape(q.dtype, sizes, (head_dim, v.shape[3]), mask, heads_kv, softcap, sinks, lse)
    return rows, None if empty_call else shape


def _shape(
    dtype: torch.dtype,
    sizes: tuple[int, int, int, int],
    head_dims: tuple[int, int],
    mask: Mask,
    heads_kv: int,
    *optional: Any,
) -> AttentionShape:
    """The problem of these sizes: batch, heads, seq_q and seq_kv. Raises InputError."""
    try:
        check_head_dim(head_size(*head_dims))
        name = str(dtype).removeprefix("torch.")
        return AttentionShape(*sizes, head_dims[0], name, mask, head_dims[1], heads_kv, *optional)
    except InputError as error:
        raise _of_attention(error) from None


def checked_card(device: torch.device) -> Card:
    """The card that tensors on a device are on. Raises InputError for those that are on none that is known."""
    if device.type != "cuda":
        known = ", ".join(card.name for card in CARDS.values())
        raise InputError(f"attention: the tensors are on {device}, expected a CUDA device ({known})")
    return card_of(torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device))


def output_for(out: Tensor | None, shape: tuple[int, ...], inputs: dict[str, Tensor], layout: str) -> Tensor:
    """Where an output of this shape (batch, heads, seq, head_dim) goes: a new tensor, or `out`."""
    if out is None:
        return empty(inputs["q"], shape, layout)
    if not _is_4d(out):
        found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"attention: out is {found}, expected a tensor ({', '.join(DIMENSIONS[layout])})")
    if torch.is_grad_enabled() and out.requires_grad:
        raise InputError("attention: out requires a gradient, and there is no backward: call it under torch.no_grad()")
    output = other_way(out, layout)
    check_out(output, shape, inputs, layout)
    return output


def checked_scale(scale: float | None, head_dim: int, softcap: float | None) -> float:
    """The factor of the scores."""
    if scale is None:
        return head_dim**-0.5
    try:
        return scale_of(scale, softcap)
    except InputError as error:
        raise _of_attention(error) from None


def checked_options(
    *, causal: bool, scale: float | None, window_size: object, softcap: float, layout: str, **flags: bool
) -> tuple[Mask, float]:
    """The mask, and the cap, 0 for none. Raises InputError for whatever is wrong in any call, whatever its tensors are."""
    check_layout(layout)
    for name, value in {"causal": causal, **flags}.items():
        if not isinstance(value, bool):
            raise InputError(f"attention: {name} is {shown(value)}, expected True or False")
    try:
        mask, softcap = masked(causal, window_size), softcap_of(softcap)
    except InputError as error:
        raise _of_attention(error) from None
    checked_scale(scale, 1, softcap)
    return mask, softcap


def check_dense(**tensors: object) -> None:
    """Raise InputError for a tensor without strides, such as a sparse one: most questions to it raise another error."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and (tensor.is_nested or tensor.layout != torch.strided):
            kind = "nested" if tensor.is_nested else tensor.layout
            raise InputError(f"attention: {name} is a tensor with layout {kind}, expected {torch.strided}")


def check_sinks(sinks: Tensor | None, q: Tensor) -> None:
    """Raise InputError unless there is one for each of q's heads."""
    if sinks is None:
        return
    expected = f"q's ({q.shape[1]},) contiguous torch.float32 on {q.device}" if _is_4d(q) else "a tensor (heads,)"
    if not isinstance(sinks, Tensor):
        raise InputError(f"attention: sinks is {type(sinks).__name__}, expected {expected}")
    found = (tuple(sinks.shape), sinks.dtype, sinks.device, sinks.is_contiguous())
    if _is_4d(q) and found != ((q.shape[1],), torch.float32, q.device, True):
        contiguous = "contiguous" if sinks.is_contiguous() else "not contiguous"
        raise InputError(
            f"attention: sinks is {contiguous} {tuple(sinks.shape)} {sinks.dtype} on {sinks.device}, expected {expected}"
        )


def check_without_data(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, layout: str, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """All that needs neither a GPU nor numbers: lengths, batch and heads may be symbols. Returns bhsd views."""
    checked_options(layout=layout, **options)
    check_dense(q=q, k=k, v=v, sinks=sinks)
    q, k, v = (bhsd(x, layout) for x in (q, k, v))
    check_sinks(sinks, q)
    check_tensors(q, k, v)
    try:
        # A kernel is compiled for head sizes, so where they are symbols they become numbers.
        check_head_dim(head_size(int(q.shape[3]), int(v.shape[3])))
        check_dtype(str(q.dtype).removeprefix("torch."))
    except InputError as error:
        raise _of_attention(error) from None
    return q, k, v
