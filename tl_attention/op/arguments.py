"""This module checks the arguments of `attention`.

One line of an error says which argument is wrong, what it is, and what was expected. Tensors are (batch, heads, seq,
head_dim) here, whatever the caller's layout.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError, printable, shown
from tl_attention.op.in_memory import BHSD, DIMENSIONS, check_layout, check_out, empty, other_way
from tl_attention.op.rows import Rows
from tl_attention.op.scalars import plain
from tl_attention.problem.card import CARDS, Card, card_of
from tl_attention.problem.features import BY_WORD, FEATURES, INPUTS, Asked, scale_of
from tl_attention.problem.head_dims import check_head_dim, head_size
from tl_attention.problem.mask import Mask, masked, shortened
from tl_attention.problem.shape import AttentionShape, check_dtype

# A call's value for each feature that is an input of the call, by word: a number, or a tensor or None.
Given = Mapping[str, Any]


def by_word(values: Sequence[Any]) -> Given:
    """Returns a dict from features' words, such as `softcap`, to these values, which come in the order of INPUTS."""
    return {feature.word: value for feature, value in zip(INPUTS, values, strict=True)}


def _is_4d(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.dim() == 4


def prefixed(function: str, error: InputError) -> InputError:
    """Returns the error with the function's name as the prefix of its message, in place of a prefix `shape`."""
    return InputError(f"{function}: {str(error).removeprefix('shape: ')}")


# The dimensions of q, and of k and v, as functions check them.
DIMENSIONS_OF = {
    "attention": ("batch, heads, seq_q, head_dim", "batch, heads_kv, seq_kv, head_dim"),
    "attention_varlen": ("total_q, heads, head_dim", "total_k, heads_kv, head_dim"),
}


def check_is(name: str, tensor: object, dimensions: Sequence[str], function: str = "attention") -> None:
    """Raises InputError unless an argument is a tensor with as many dimensions as these, which are words."""
    if not isinstance(tensor, Tensor) or tensor.dim() != len(dimensions):
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"{function}: {name} is {found}, expected a tensor ({', '.join(dimensions)})")


def check_tensors(
    q: Tensor, k: Tensor, v: Tensor, dimensions: Sequence[str] = DIMENSIONS[BHSD], function: str = "attention"
) -> None:
    """Raises InputError unless q, k and v are tensors of one dtype and device, with sizes that match."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_is(name, tensor, dimensions, function)
        if tensor.device != q.device or tensor.dtype != q.dtype:
            raise InputError(
                f"{function}: {name} is {tensor.dtype} on {tensor.device}, expected q's {q.dtype} on {q.device}"
            )
    if k.shape[:-1] != v.shape[:-1] or k.shape[:-3] != q.shape[:-3] or k.shape[-1] != q.shape[-1]:
        of_q, of_kv = DIMENSIONS_OF[function]
        raise InputError(
            f"{function}: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not match, expected q ({of_q}) "
            f"and k, v ({of_kv}), where v's head_dim may be another"
        )
    heads, heads_kv = q.shape[1], k.shape[1]
    if heads % heads_kv if heads_kv else heads:
        raise InputError(f"{function}: q has {heads} heads, expected a multiple of the {heads_kv} that k and v have")


def check_supported(q: Tensor, v: Tensor, function: str = "attention") -> None:
    """Raises InputError for head sizes and dtypes that no kernel has."""
    try:
        # A kernel is compiled for head sizes, so where they are symbols they become numbers.
        check_head_dim(head_size(int(q.shape[-1]), int(v.shape[-1])))
        check_dtype(str(q.dtype).removeprefix("torch."))
    except InputError as error:
        raise prefixed(function, error) from None


def checked_problem(q: Tensor, k: Tensor, v: Tensor, mask: Mask, asked: Asked) -> tuple[Rows, AttentionShape | None]:
    """Returns the call's row counts as Rows, and the AttentionShape of the rows that see a key; None if there are none.

    Raises InputError for a problem that no kernel has. The tensors have passed `check_tensors`.
    """
    batch, heads, seq_q, head_dim = q.shape
    heads_kv, seq_kv = k.shape[1:3]
    rows, mask = Rows.of(mask, seq_q, seq_kv), shortened(mask, max(seq_q, seq_kv))
    if 0 in (batch, heads, rows.count):
        return rows, None
    try:
        dtype = str(q.dtype).removeprefix("torch.")
        shape = AttentionShape(batch, heads, rows.count, seq_kv, head_dim, dtype, mask, v.shape[3], heads_kv, asked)
    except InputError as error:
        raise prefixed("attention", error) from None
    return rows, shape


def checked_card(device: torch.device) -> Card:
    """Returns the Card that describes a CUDA device's GPU. Raises InputError for other devices and for unknown GPUs."""
    if device.type != "cuda":
        known = ", ".join(card.name for card in CARDS.values())
        raise InputError(f"attention: the tensors are on {device}, expected a CUDA device ({known})")
    return card_of(torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device))


def output_for(out: Tensor | None, shape: tuple[int, ...], inputs: dict[str, Tensor], layout: str) -> Tensor:
    """Returns a new output tensor (batch, heads, seq, head_dim), or a view of `out` if it is given.

    Raises InputError for an `out` that cannot take the output.
    """
    if out is None:
        return empty(inputs["q"], shape, layout)
    check_is("out", out, DIMENSIONS[layout])
    check_no_gradient(out)
    output = other_way(out, layout)
    check_out(output, shape, inputs, layout)
    return output


def check_no_gradient(out: Tensor) -> None:
    """Raises InputError for an `out` that requires a gradient, where gradients are enabled."""
    if torch.is_grad_enabled() and out.requires_grad:
        raise InputError("attention: out requires a gradient, and there is no backward: call it under torch.no_grad()")


def checked_scale(scale: float | None, head_dim: int, asked: Asked) -> float:
    """Returns the scale of the scores as a float, for None 1 / sqrt(head_dim). Raises InputError for a wrong scale."""
    if scale is None:
        return head_dim**-0.5
    try:
        # Every call with a scale comes by here.
        scale = scale_of(scale if type(scale) is float else plain(scale))
        for word, value in asked.pairs:
            BY_WORD[word].check_with_scale(value, scale)
        return scale
    except InputError as error:
        raise prefixed("attention", error) from None


def checked_options(
    given: Given,
    *,
    causal: bool,
    scale: float | None,
    window_size: object,
    layout: str,
    return_lse: bool = False,
    invariant: bool | None = None,
    **flags: bool,
) -> tuple[Mask, Asked]:
    """Checks a call's options without its tensors, and returns (its Mask, the features that it asks for).

    Raises InputError for options that are wrong for any tensors.
    """
    check_layout(layout)
    for name, value in {"causal": causal, "return_lse": return_lse, **flags}.items():
        if not isinstance(value, bool):
            raise InputError(f"attention: {name} is {shown(value)}, expected True or False")
    if not (invariant is None or isinstance(invariant, bool)):
        raise InputError(f"attention: invariant is {shown(invariant)}, expected True, False or None")
    try:
        mask = masked(causal, window_size)
        there = {f.word: given[f.word] if f.is_number else given[f.word] is not None for f in INPUTS}
        asked = Asked(**there, lse=return_lse)
    except InputError as error:
        raise prefixed("attention", error) from None
    checked_scale(scale, 1, asked)
    return mask, asked


def check_dense(**tensors: object) -> None:
    """Raises InputError for a tensor without strides, which is a sparse or nested one. Other objects pass.

    Most questions to such a tensor raise another error.
    """
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and (tensor.is_nested or tensor.layout != torch.strided):
            kind = "nested" if tensor.is_nested else tensor.layout
            raise InputError(f"attention: {name} is a tensor with layout {kind}, expected {torch.strided}")


def tensors_of(given: Given) -> dict[str, Tensor]:
    """Returns a dict of the tensors that a call gives for features, such as `sinks`, by the feature's word."""
    return {f.word: given[f.word] for f in INPUTS if not f.is_number and given[f.word] is not None}


def check_per_head(given: Given, q: Tensor) -> None:
    """Raises InputError unless each feature's tensor is contiguous fp32 of shape (heads,) on q's device."""
    expected = f"q's ({q.shape[1]},) contiguous torch.float32 on {q.device}" if _is_4d(q) else "a tensor (heads,)"
    for word, tensor in tensors_of(given).items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"attention: {word} is {type(tensor).__name__}, expected {expected}")
        found = (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.is_contiguous())
        if _is_4d(q) and found != ((q.shape[1],), torch.float32, q.device, True):
            contiguous = "contiguous" if tensor.is_contiguous() else "not contiguous"
            lies = f"{contiguous} {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise InputError(f"attention: {word} is {lies}, expected {expected}")


def lse_without_keys(given: Given, lse: Tensor) -> Tensor:
    """Returns the LSE of rows that see no key, from features such as sinks, or -inf without any.

    It is the LSE of the features that are scores of their own, to be copied to (batch, heads, rows).
    """
    scores = [given[f.word][:, None] for f in INPUTS if f.counts_once and given[f.word] is not None]
    return torch.stack(scores).logsumexp(dim=0) if scores else lse.new_tensor(-float("inf"))


def checked_call(
    q: Tensor, k: Tensor, v: Tensor, given: Given, out: Tensor | None = None, *, layout: str, **options: Any
) -> tuple[Tensor, Tensor, Tensor, Mask, Asked]:
    """Checks the arguments of a call without a GPU, and returns (q, k, v, mask, features asked for).

    q, k and v are returned as (batch, heads, seq, head_dim). Lengths, batch and heads may be symbols. Raises
    InputError for what is wrong.
    """
    mask, asked = checked_options(given, layout=layout, **options)
    check_dense(q=q, k=k, v=v, out=out, **tensors_of(given))
    # The checks of shapes name what is not 4D.
    q, k, v = (other_way(x, layout) if _is_4d(x) else x for x in (q, k, v))
    check_per_head(given, q)
    check_tensors(q, k, v)
    check_supported(q, v)
    return q, k, v, mask, asked


# --- arguments that there are not ------------------------------------------------------------------------------------

# The names that other libraries have for arguments, and the names here.
ELSEWHERE = {
    "is_causal": "causal",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "scaling": "scale",
    "sliding_window": "window_size",
    **{theirs: feature.argument for feature in FEATURES for theirs in feature.elsewhere},
}
# Arguments that there is nothing for, and what is done instead.
WITHOUT = {
    "attn_mask": "masks are causal and window_size",
    "attention_mask": "masks are causal and window_size",
    "dropout_p": "there is no dropout",
    "enable_gqa": "k and v may have fewer heads without it",
}


class UnknownArgument(InputError, TypeError):
    """This error is for an argument that a function does not have. Python's own error for that is a TypeError."""


def without_a_name(function: str, value: object, behind: str) -> UnknownArgument:
    """Returns the error for a positional argument behind the last one that has a place."""
    return UnknownArgument(
        f"{function}: {shown(value)} is given behind {behind} without a name, expected a keyword such as causal=True"
    )


def unknown_argument(function: str, names: Iterable[str], known: Iterable[str]) -> UnknownArgument:
    """Returns the error for the first of these unknown keywords, with the known argument that may be meant."""
    name, known = next(iter(names)), list(known)
    close = [found for found in (ELSEWHERE.get(name),) if found in known] or difflib.get_close_matches(name, known, n=1)
    meant = next(iter(close), None)
    found = f"{function}: no argument is named {printable(name)[:60]}"
    if name in WITHOUT:
        return UnknownArgument(f"{found}: {WITHOUT[name]}")
    return UnknownArgument(
        f"{found}: did you mean {meant}?" if meant else f"{found}, expected some of {', '.join(known)}"
    )
