"""This module checks the arguments of a call, of `attention` and `attention_varlen` alike.

One line of an error says which argument is wrong, what it is, and what was expected.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tl_attention.errors import InputError, shown
from tl_attention.op.call import Call
from tl_attention.op.in_memory import check_out
from tl_attention.op.scalars import plain
from tl_attention.problem.card import KNOWN, Card, card_of
from tl_attention.problem.features import BY_WORD, INPUTS, FeatureValues, scale_of
from tl_attention.problem.head_dims import check_head_dim, head_size
from tl_attention.problem.mask import Mask, masked
from tl_attention.problem.shape import check_dtype


class Checked(NamedTuple):
    """A Checked is what a call with right arguments asks for: its mask, its features and the scale of its scores."""

    mask: Mask
    asked: FeatureValues
    scale: float


def checked(call: Call) -> Checked:
    """Checks a call's arguments without a GPU, and returns what they ask for. Raises InputError for what is wrong.

    Lengths, batch and heads may be symbols.
    """
    q, k, v, where = call.q, call.k, call.v, call.where
    mask, asked = _checked_settings(call)
    scale = None if call.scale is None else checked_scale(call.scale, asked)
    of_features = call.tensors_of_features
    _check_dense(q=q, k=k, v=v, out=call.out, **where.tensors, **of_features)
    q, k, v = map(where.canonical, (q, k, v))
    _check_tensors(q, k, v, where)
    where.check_offsets(q)
    _check_per_head(of_features, q)
    _check_supported(q, v, where.function)
    return Checked(mask, asked, q.shape[-1] ** -0.5 if scale is None else scale)


def _checked_settings(call: Call) -> tuple[Mask, FeatureValues]:
    for name in ("causal", "return_lse", "specialize", "zero_unused", "check", "invariant"):
        value = getattr(call, name)
        if not (isinstance(value, bool) or (value is None and name == "invariant")):
            expected = "True, False or None" if name == "invariant" else "True or False"
            raise InputError(f"attention: {name} is {shown(value)}, expected {expected}")
    try:
        mask = masked(call.causal, call.window_size)
        given = ((f, value) for f, value in zip(INPUTS, call.values))
        asked = {f.word: value if f.is_number else value is not None for f, value in given}
        return mask, FeatureValues(**asked, lse=call.return_lse)
    except InputError as error:
        raise prefixed("attention", error) from None


def checked_scale(scale: float, asked: FeatureValues) -> float:
    """Returns the scale of the scores as a float. Raises InputError for a wrong one, or one these features forbid."""
    try:
        # Every call with a scale comes by here.
        scale = scale_of(scale if type(scale) is float else plain(scale))
        for word, value in asked.pairs:
            BY_WORD[word].check_with_scale(value, scale)
        return scale
    except InputError as error:
        raise prefixed("attention", error) from None


def _check_dense(**tensors: object) -> None:
    """Raises InputError for a sparse or nested tensor, to which most questions raise another error."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and (tensor.is_nested or tensor.layout != torch.strided):
            kind = "nested" if tensor.is_nested else tensor.layout
            raise InputError(f"attention: {name} is a tensor with layout {kind}, expected {torch.strided}")


def check_is(name: str, tensor: object, where: Any) -> None:
    """Raises InputError unless an argument is a tensor with the dimensions that one has there."""
    if not isinstance(tensor, Tensor) or tensor.dim() != len(where.dimensions):
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"{where.function}: {name} is {found}, expected a tensor ({', '.join(where.dimensions)})")


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, where: Any) -> None:
    """Raises InputError unless q, k and v are tensors of one dtype and device, with sizes that match."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_is(name, tensor, where)
        if tensor.device != q.device or tensor.dtype != q.dtype:
            raise InputError(
                f"{where.function}: {name} is {tensor.dtype} on {tensor.device}, expected q's {q.dtype} on {q.device}"
            )
    if k.shape[:-1] != v.shape[:-1] or k.shape[:-3] != q.shape[:-3] or k.shape[-1] != q.shape[-1]:
        of_q, of_kv = where.expected_dimensions
        raise InputError(
            f"{where.function}: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not match, expected q "
            f"({of_q}) and k, v ({of_kv}), where v's head_dim may be another"
        )
    heads, heads_kv = q.shape[1], k.shape[1]
    if heads % heads_kv if heads_kv else heads:
        raise InputError(
            f"{where.function}: q has {heads} heads, expected a multiple of the {heads_kv} that k and v have"
        )


def _check_per_head(tensors: dict[str, Tensor], q: Tensor) -> None:
    """Raises InputError unless each feature's tensor is contiguous fp32 of shape (heads,) on q's device."""
    expected = f"q's ({q.shape[1]},) contiguous torch.float32 on {q.device}"
    for word, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"attention: {word} is {type(tensor).__name__}, expected {expected}")
        found = (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.is_contiguous())
        if found != ((q.shape[1],), torch.float32, q.device, True):
            contiguous = "contiguous" if tensor.is_contiguous() else "not contiguous"
            lies = f"{contiguous} {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise InputError(f"attention: {word} is {lies}, expected {expected}")


def _check_supported(q: Tensor, v: Tensor, function: str) -> None:
    """Raises InputError for head sizes and dtypes that no kernel has."""
    try:
        # A kernel is compiled for head sizes, so where they are symbols they become numbers.
        check_head_dim(head_size(int(q.shape[-1]), int(v.shape[-1])))
        check_dtype(str(q.dtype).removeprefix("torch."))
    except InputError as error:
        raise prefixed(function, error) from None


def prefixed(function: str, error: InputError) -> InputError:
    """Returns the error with the function's name as the prefix of its message, in place of a prefix `shape`."""
    return InputError(f"{function}: {str(error).removeprefix('shape: ')}")


# --- of a call that runs on a GPU -------------------------------------------------------------------------------------


# What a caller without such a device may do.
ELSEWHERE = "torch.nn.functional.scaled_dot_product_attention computes it there, and `tl-attention run` tries schedules"


def checked_card(device: torch.device) -> Card:
    """Returns the Card that describes a CUDA device's GPU. Raises InputError for other devices and for unknown GPUs."""
    if device.type != "cuda":
        raise InputError(f"attention: the tensors are on {device}, expected a CUDA device of {KNOWN}; {ELSEWHERE}")
    return card_of(torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device))


def checked_output(call: Call) -> Tensor:
    """Returns the call's `out`, or a new tensor for the output. Raises InputError for an `out` that cannot take it."""
    where, (out, _) = call.where, call.results(has_lse=False)
    if call.out is None:
        return out
    check_is("out", out, where)
    if torch.is_grad_enabled() and out.requires_grad:
        raise InputError("attention: out requires a gradient, and there is no backward: call it under torch.no_grad()")
    q, k, v, output = map(where.canonical, (*call[:3], out))
    others = {name: tensor for name, tensor in where.tensors.items() if tensor is not None}
    inputs = {"q": q, "k": k, "v": v, **others, **call.tensors_of_features}
    check_out(output, (*q.shape[:-1], v.shape[-1]), inputs, where.layout)
    return out
