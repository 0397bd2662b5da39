"""The operator `torch.ops.tl_attention.forward_varlen` is `attention_varlen` for torch.compile, torch.export and autograd.

Its gradient is computed by backward.py. This module also says which calls have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import backward, operator, packed_arguments
from tl_attention.op.arguments import Given
from tl_attention.op.operator import (
    FLOATS,
    HERE,
    PER_HEAD,
    SINKS,
    TENSORS,
    forward_only,
    given_of,
    gradients_of,
    refuse,
    refuse_features,
    register,
    register_gradient,
    requires_gradient,
    save,
)
from tl_attention.op.packed_arguments import LONGEST, NAMES, Offsets
from tl_attention.problem.mask import OPEN, WIDEST, masked
from tl_attention.schedule.files.backward import packed_masks_alike
from tl_attention.schedule.schedule import Schedule

# The options that a backward has, too.
OPTIONS = ("causal", "scale", "window_size")
NAME, GRADIENT = "tl_attention::forward_varlen", "tl_attention::backward_varlen"
# The operator's arguments that say where sequences lie.
WHERE = (*NAMES[:2], *LONGEST, *NAMES[2:])
SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    f"Tensor? seqused_q=None, Tensor? seqused_k=None, {TENSORS}*, bool causal=False, float? scale=None, "
    f"int[2] window_size=[-1, -1], {FLOATS}bool return_lse=False, str? schedule=None, bool zero_unused=False, bool? invariant=None) "
    "-> (Tensor, Tensor)"
)
GRADIENT_SCHEMA = (
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor output, Tensor lse, Tensor? sinks, Tensor cu_seqlens_q, "
    "Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, *, bool causal, float? scale, int[2] window_size) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Offsets,
    longest: tuple[int, int],
    given: Given,
    schedule: Schedule | str | Path | None,
    *,
    check: bool,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Calls `torch.ops.tl_attention.forward_varlen` with the arguments of `attention_varlen`, and returns what that does."""
    cu_q, cu_k, *used = offsets
    # The operator's integers have 64 bits.
    where = (cu_q, cu_k, min(longest[0], WIDEST), min(longest[1], WIDEST), *used)
    return operator.call(q, k, v, given, schedule, where, **options)


def check(
    q: Tensor, k: Tensor, v: Tensor, offsets: Offsets, longest: tuple[int, int], given: Given, out: Tensor | None,
    **options: Any,
) -> None:  # fmt: skip
    """Raises InputError for arguments that are wrong, that the operator lacks, or that have no gradient and need one."""
    packed_arguments.checked_call(q, k, v, offsets, longest, given, **options)
    there = {"out": out is not None, "check": options["check"]}
    if requires_gradient(q, k, v, *given.values()):
        check_has_backward(offsets, longest, given, **{name: options[name] for name in OPTIONS})
        refuse({"return_lse": options["return_lse"]} | there)
    for name in (name for name, given_here in there.items() if given_here):
        raise InputError(f"attention_varlen: {name} is given {HERE}, expected none")


def _fake(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int,
    used_q: Tensor | None = None, used_k: Tensor | None = None, *tensors: Tensor | None, causal: bool = False,
    scale: float | None = None, window_size: Sequence[int] = (OPEN, OPEN), return_lse: bool = False,
    zero_unused: bool = False, **others: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    offsets, given = (cu_q, cu_k, used_q, used_k), given_of(tensors, others)
    options: dict[str, Any] = {"causal": causal, "scale": scale, "window_size": tuple(window_size)}
    packed_arguments.checked_call(q, k, v, offsets, (max_q, max_k), given, zero_unused=zero_unused, **options)
    lse = (q.shape[1], q.shape[0]) if return_lse else (0,)
    return q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty(lse, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: Any, keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_k, max_q, max_k, used_q, used_k, *tensors = inputs
    options = keyword_only_inputs
    own = {name: options[name] for name in OPTIONS}
    given = given_of(tensors, options)
    check_has_backward((cu_q, cu_k, used_q, used_k), (max_q, max_k), given, **own)
    save(ctx, NAME, (q, k, v, *output, given["sinks"], cu_q, cu_k), options["return_lse"])
    ctx.longest, ctx.options = (max_q, max_k), own


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *saved, sinks, cu_q, cu_k = ctx.saved_tensors
    needed = sinks is not None and ctx.needs_input_grad[9 + PER_HEAD.index(SINKS)]
    where = sinks if needed else None, cu_q, cu_k, *ctx.longest
    found = torch.ops.tl_attention.backward_varlen(grad, *saved, *where, **ctx.options)
    return gradients_of(found, needed, others=6)


# --- its gradient ----------------------------------------------------------------------------------------------------


def check_has_backward(
    offsets: Offsets, longest: tuple[int, int], given: Given, *, causal: bool, scale: float | None, window_size: Sequence[int]
) -> None:  # fmt: skip
    """Raises InputError for features, used lengths and masks that the backward lacks. Every scale has one."""
    refuse_features(given)
    if offsets[2] is not None or offsets[3] is not None:
        raise forward_only("seqused", "with sequences cut to their used rows")
    if not packed_masks_alike(masked(causal, window_size), longest[1]):
        raise forward_only(
            f"window_size {tuple(window_size)}", "with a right side that is closed, and shorter than max_seqlen_k"
        )


register(NAME, SCHEMA, _fake, _backward, setup_context=_setup_context)
register_gradient(GRADIENT, GRADIENT_SCHEMA, backward.packed)
