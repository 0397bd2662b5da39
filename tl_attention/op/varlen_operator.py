"""The operator `torch.ops.tl_attention.forward_varlen` is `attention_varlen` for torch.compile, torch.export and autograd.

Its gradient is computed by backward.py. This module also says which calls have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import backward, packed_arguments
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
    name_of,
    no_second,
    refuse,
    refuse_features,
    requires_gradient,
    with_tensors,
    without_data,
)
from tl_attention.op.packed_arguments import Offsets
from tl_attention.problem.features import NUMBERS
from tl_attention.problem.mask import OPEN, WIDEST, masked
from tl_attention.schedule.files.backward import packed_masks_alike
from tl_attention.schedule.schedule import Schedule

# The options that a backward has, too.
OPTIONS = ("causal", "scale", "window_size")
NAME, GRADIENT = "tl_attention::forward_varlen", "tl_attention::backward_varlen"
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
    return_lse: bool,
    zero_unused: bool,
    check: bool,
    invariant: bool | None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Calls `torch.ops.tl_attention.forward_varlen` with the arguments of `attention_varlen`, and returns what that does."""
    cu_q, cu_k, *used = offsets
    # The operator's integers have 64 bits.
    longest = (min(longest[0], WIDEST), min(longest[1], WIDEST))
    tensors = (given[feature.word] for feature in PER_HEAD)
    options |= {feature.word: given[feature.word] for feature in NUMBERS}
    # The backward reads the LSE.
    chosen: dict[str, Any] = {"return_lse": return_lse or requires_gradient(q, k, v, *given.values())}
    chosen |= {"zero_unused": zero_unused, "invariant": invariant, "schedule": name_of(schedule, "attention_varlen")}
    output, lse = torch.ops.tl_attention.forward_varlen(
        q, k, v, cu_q, cu_k, *longest, *used, *tensors, **options, **chosen
    )
    return (output, lse) if return_lse else output


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
    if not options["return_lse"]:
        raise InputError(f"attention_varlen: an input of {NAME} requires a gradient, expected return_lse=True then")
    ctx.save_for_backward(q, k, v, *output, given["sinks"], cu_q, cu_k)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.longest, ctx.options = (max_q, max_k), own


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *saved, sinks, cu_q, cu_k = ctx.saved_tensors
    needed = sinks is not None and ctx.needs_input_grad[9 + PER_HEAD.index(SINKS)]
    where = sinks if needed else None, cu_q, cu_k, *ctx.longest
    found = torch.ops.tl_attention.backward_varlen(grad, *saved, *where, **ctx.options)
    return gradients_of(found, needed, others=6)


def implemented_by(attention_varlen: Callable[..., Any]) -> None:
    """Registers `attention_varlen` as what `torch.ops.tl_attention.forward_varlen` runs, on every device.

    The function's own errors name the devices that have no kernel.
    """

    @torch.no_grad()
    def forward(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int,
        used_q: Tensor | None = None, used_k: Tensor | None = None, *tensors: Tensor | None, **options: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if "window_size" in options:
            options["window_size"] = tuple(options["window_size"])
        options |= given_of(tensors, options)
        found = attention_varlen(q, k, v, cu_q, cu_k, max_q, max_k, seqused_q=used_q, seqused_k=used_k, **options)
        return found if options.get("return_lse") else (found, q.new_empty((0,), dtype=torch.float32))

    torch.library.impl(NAME, "CompositeExplicitAutograd")(forward)


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


def _gradients_without_data(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, sinks: Tensor | None, *others: Any, **options: Any
) -> tuple[Tensor, ...]:  # fmt: skip
    return without_data(sinks, q, k, v)


torch.library.define(NAME, SCHEMA)
torch.library.register_fake(NAME)(_fake)
torch.library.register_autograd(NAME, _backward, setup_context=_setup_context)
torch.library.define(GRADIENT, GRADIENT_SCHEMA)
torch.library.impl(GRADIENT, "CompositeExplicitAutograd")(with_tensors(backward.packed))
torch.library.register_fake(GRADIENT)(_gradients_without_data)
torch.library.register_autograd(GRADIENT, no_second)
