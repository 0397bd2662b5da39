"""This module checks the arguments of `attention_varlen`: tensors of packed sequences, and the offsets of these."""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError, shown
from tl_attention.op import arguments, in_memory
from tl_attention.op.arguments import Given
from tl_attention.op.in_memory import BHSD
from tl_attention.problem.bounds import check_totals
from tl_attention.problem.features import Asked
from tl_attention.problem.mask import Mask, shortened
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.defaults import defaults, edges

# cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k.
Offsets = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
NAMES = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
LONGEST = ("max_seqlen_q", "max_seqlen_k")
DIMENSIONS, FUNCTION = ("total", "heads", "head_dim"), "attention_varlen"
# Kernels add a window's sides to lengths, so they are cut to this, or to the totals if these are more.
LONG_SIDE = 1 << 24


def checked_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Offsets,
    longest: tuple[int, int],
    given: Given,
    out: Tensor | None = None,
    **options: Any,
) -> tuple[Mask, Asked]:
    """Checks a call's arguments without a GPU, and returns (mask, features asked for).

    Totals and numbers of sequences may be symbols. Raises InputError for what is wrong.
    """
    mask, asked = arguments.checked_options(given, layout=BHSD, **options)
    there = dict(zip(NAMES, offsets))
    arguments.check_dense(q=q, k=k, v=v, out=out, **there, **arguments.tensors_of(given))
    arguments.check_tensors(q, k, v, DIMENSIONS, FUNCTION)
    _check_offsets(q, there)
    for name, most in zip(LONGEST, longest):
        _check_longest(name, most)
    # (1, heads, total, head_dim): a feature's tensor has a number for each of the heads.
    arguments.check_per_head(given, q.transpose(0, 1).unsqueeze(0))
    arguments.check_supported(q, v, FUNCTION)
    return mask, asked


def _check_longest(name: str, most: object) -> None:
    """Raises InputError unless `most` is an integer of at least 0, which may be a symbol."""
    if isinstance(most, (int, torch.SymInt)) and not isinstance(most, bool) and most >= 0:
        return
    expected = "expected an integer of at least 0"
    if not isinstance(most, Tensor):
        raise InputError(f"attention_varlen: {name} is {shown(most)}, {expected}")
    instead = f": pass {name}.item()" if most.dim() == 0 else ""
    raise InputError(f"attention_varlen: {name} is a tensor {tuple(most.shape)} on {most.device}, {expected}{instead}")


def _check_offsets(q: Tensor, offsets: dict[str, Tensor | None]) -> None:
    """Raises InputError unless offsets and used lengths are contiguous int32 of matching lengths on q's device."""
    for name, tensor in offsets.items():
        if tensor is None and name.startswith("seqused"):
            continue
        words = "(sequences,)" if name.startswith("seqused") else "(sequences + 1,)"
        expected = f"contiguous torch.int32 {words} on {q.device}"
        if not isinstance(tensor, Tensor):
            raise InputError(f"attention_varlen: {name} is {type(tensor).__name__}, expected {expected}")
        known = tensor.dim() == 1 and tensor.dtype == torch.int32 and tensor.device == q.device
        if not known or not tensor.is_contiguous():
            lies = "" if tensor.is_contiguous() else "not contiguous "
            found = f"{lies}{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            raise InputError(f"attention_varlen: {name} is {found}, expected {expected}")
    bounds = {name: tensor.shape[0] for name, tensor in offsets.items() if tensor is not None}
    count = bounds["cu_seqlens_q"] - 1
    if count < 0:
        raise InputError("attention_varlen: cu_seqlens_q has 0 offsets, expected one more than there are sequences")
    for name, there in bounds.items():
        wanted = count if name.startswith("seqused") else count + 1
        if there != wanted:
            raise InputError(
                f"attention_varlen: {name} has {there} numbers, expected {wanted}, as cu_seqlens_q has {count + 1}"
            )


def checked_problem(
    q: Tensor, k: Tensor, v: Tensor, offsets: Offsets, longest: tuple[int, int], mask: Mask, asked: Asked
) -> AttentionShape | None:
    """Returns the problem by which a schedule is chosen, one sequence of the longest lengths; None without a tile.

    Raises InputError for a problem that no kernel has.
    """
    (total_q, heads, head_dim), total_k, sequences = q.shape, k.shape[0], offsets[0].shape[0] - 1
    if 0 in (total_q, heads, sequences):
        return None
    mask, (seq_q, seq_kv) = shortened(mask, max(LONG_SIDE, total_q, total_k)), longest
    try:
        check_totals(sequences, heads, total_q, total_k, min(seq_kv, total_k), mask)
        return AttentionShape(
            1, heads, max(1, min(seq_q, total_q)), max(1, min(seq_kv, total_k)), head_dim, str(q.dtype).removeprefix("torch."), mask,
            v.shape[2], k.shape[1], asked, packed=True,
        )  # fmt: skip
    except InputError as error:
        raise arguments.prefixed(FUNCTION, error) from None


def check_out(out: Tensor | None, q: Tensor, k: Tensor, v: Tensor, offsets: Offsets, given: Given) -> None:
    """Raises InputError for an `out` that cannot take the output, and for tensors that no kernel can read where they lie."""
    if out is not None:
        arguments.check_is("out", out, DIMENSIONS, FUNCTION)
    for name, tensor in {"q": q, "k": k, "v": v, "out": out}.items():
        if tensor is not None:
            in_memory.check_place(name, tensor)
    if out is None:
        return
    arguments.check_no_gradient(out)
    inputs = {"q": q, "k": k, "v": v, **{n: x for n, x in zip(NAMES, offsets) if x is not None}}
    in_memory.check_out(out, (*q.shape[:2], v.shape[2]), inputs | arguments.tensors_of(given), BHSD)


def check_contents(offsets: Offsets, total_q: int, total_k: int, longest: tuple[int, int]) -> None:
    """Raises InputError for offsets that fall or go beyond the tensors, and for lengths beyond the longest or the used.

    It waits for the GPU.
    """
    cu_q, cu_k, used_q, used_k = offsets
    for side, cu, used, total, most in (
        ("q", cu_q, used_q, total_q, longest[0]),
        ("k", cu_k, used_k, total_k, longest[1]),
    ):
        found = cu.tolist()
        lengths = [end - begin for begin, end in itertools.pairwise(found)]
        if found[0] < 0 or found[-1] > total:
            raise InputError(
                f"attention_varlen: cu_seqlens_{side} goes from {found[0]} to {found[-1]}, expected 0 to at most the {total} "
                "rows that there are"
            )
        for number, length in enumerate(lengths):
            if length < 0:
                raise InputError(
                    f"attention_varlen: cu_seqlens_{side} falls from {found[number]} to {found[number + 1]} at sequence "
                    f"{number}, expected offsets that do not fall"
                )
        for number, of_one in enumerate(lengths if used is None else used.tolist()):
            if used is not None and not 0 <= of_one <= lengths[number]:
                raise InputError(
                    f"attention_varlen: seqused_{side} has {of_one} for sequence {number}, expected 0 to its {lengths[number]} "
                    "rows"
                )
            if of_one > most:
                raise InputError(
                    f"attention_varlen: sequence {number} has {of_one} rows of {side}, expected at most max_seqlen_{side}, "
                    f"{most}"
                )


def taken(tensor: Tensor) -> Tensor:
    """Returns a tensor as a kernel takes it, in which dimensions of length 1 have the strides of a contiguous tensor.

    One without an element, which no kernel reads, becomes a row that is no sequence's.
    """
    if not tensor.numel():
        return tensor.new_empty((1, *(max(size, 1) for size in tensor.shape[1:])))
    return in_memory.whole_strides(tensor) if 1 in tensor.shape else tensor


def class_of_lengths(seq_q: int, seq_kv: int) -> tuple[int, int]:
    """Returns numbers that are equal for lengths that no default rule tells apart."""
    rows, keys = _edges()
    return bisect_right(rows, seq_q), bisect_right(keys, seq_kv)


@functools.cache
def _edges() -> tuple[list[int], list[int]]:
    rules = defaults().rules
    return edges(rules, "seq_q"), edges(rules, "seq_kv")
