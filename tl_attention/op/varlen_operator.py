"""The operator `torch.ops.tl_attention.forward_varlen` is `attention_varlen` for torch.compile, torch.export and autograd.

Its gradient is PyTorch's own FlashAttention backward. That one takes offsets as they are, and its masks end with each
sequence's last query and key, as ours do. It writes no gradient of rows that are no sequence's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import packed_arguments
from tl_attention.op.arguments import Given
from tl_attention.op.operator import (
    FLOATS,
    HERE,
    PER_HEAD,
    TENSORS,
    forward_only,
    given_of,
    is_traced,
    name_of,
    no_second,
    refuse_features,
    requires_gradient,
)
from tl_attention.op.packed_arguments import Offsets
from tl_attention.problem.features import NUMBERS
from tl_attention.problem.mask import CAUSAL, OPEN, WIDEST, masked, sides
from tl_attention.schedule.schedule import Schedule

NAME, GRADIENT = "tl_attention::forward_varlen", "tl_attention::backward_varlen"
SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    f"Tensor? seqused_q=None, Tensor? seqused_k=None, {TENSORS}*, bool causal=False, float? scale=None, "
    f"int[2] window_size=[-1, -1], {FLOATS}bool return_lse=False, str? schedule=None, bool zero_unused=False, bool? invariant=None) "
    "-> (Tensor, Tensor)"
)
GRADIENT_SCHEMA = (
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor output, Tensor lse, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, *, bool causal, float? scale, int[2] window_size) -> (Tensor, Tensor, Tensor)"
)


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Offsets,
    longest: tuple[int, int],
    given: Given,
    out: Tensor | None,
    schedule: Schedule | str | Path | None,
    *,
    return_lse: bool,
    zero_unused: bool,
    check: bool,
    invariant: bool | None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Calls `torch.ops.tl_attention.forward_varlen` with the arguments of `attention_varlen`, and returns what that does.

    Raises InputError for what the operator lacks, such as `out`, and for a gradient where there is no backward.
    """
    gradient = requires_gradient(q, k, v, *given.values())
    flags: dict[str, Any] = {
        "return_lse": return_lse,
        "zero_unused": zero_unused,
        "check": check,
        "invariant": invariant,
    }
    packed_arguments.checked_call(q, k, v, offsets, longest, given, **options, **flags)
    if gradient and not is_traced(q):
        check_has_backward(q, v, offsets, longest, given, **options)
    if gradient and return_lse:
        raise forward_only("return_lse", "without it: the LSE has no gradient")
    for name, there in (("out", out is not None), ("check", check)):
        if there and gradient:
            raise forward_only(name, "without it")
        if there:
            raise InputError(f"attention_varlen: {name} is given {HERE}, expected none")
    cu_q, cu_k, *used = offsets
    # The operator's integers have 64 bits.
    longest = (min(longest[0], WIDEST), min(longest[1], WIDEST))
    tensors = (given[feature.word] for feature in PER_HEAD)
    options |= {feature.word: given[feature.word] for feature in NUMBERS}
    # The backward reads the LSE.
    chosen: dict[str, Any] = {"zero_unused": zero_unused, "invariant": invariant, "return_lse": return_lse or gradient}
    chosen |= {"schedule": name_of(schedule, "attention_varlen")}
    output, lse = torch.ops.tl_attention.forward_varlen(
        q, k, v, cu_q, cu_k, *longest, *used, *tensors, **options, **chosen
    )
    return (output, lse) if return_lse else output


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
    own = {name: options[name] for name in ("causal", "scale", "window_size")}
    given = given_of(tensors, options)
    check_has_backward(q, v, (cu_q, cu_k, used_q, used_k), (max_q, max_k), given, **own)
    if not options["return_lse"]:
        raise InputError(f"attention_varlen: an input of {NAME} requires a gradient, expected return_lse=True then")
    ctx.save_for_backward(q, k, v, cu_q, cu_k, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.longest, ctx.options = (max_q, max_k), own


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    found = torch.ops.tl_attention.backward_varlen(grad, *ctx.saved_tensors, *ctx.longest, **ctx.options)
    return (*found, *[None] * (6 + len(PER_HEAD)))


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
    q: Tensor,
    v: Tensor,
    offsets: Offsets,
    longest: tuple[int, int],
    given: Given,
    *,
    causal: bool,
    scale: float | None,
    window_size: Sequence[int],
) -> None:
    """Raises InputError for features, used lengths, head sizes and masks that the backward lacks. Every scale has one."""
    refuse_features(given)
    if q.shape[2] != v.shape[2]:
        raise forward_only(f"head_dim {q.shape[2]} and v's {v.shape[2]}", "with equal ones")
    if offsets[2] is not None or offsets[3] is not None:
        raise forward_only("seqused", "with sequences cut to their used rows")
    mask = masked(causal, window_size)
    # A right side as long as the keys is an open one to that backward. Rows before the first key tell the two apart.
    open_there = mask.right is None or (mask.right > 0 and mask.right >= longest[1])
    if open_there and (mask.left is not None or mask.right is not None):
        raise forward_only(
            f"window_size {tuple(window_size)}", "with a right side that is closed, and shorter than max_seqlen_k"
        )


def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, output: Tensor, lse: Tensor,
    max_q: int, max_k: int, *, causal: bool, scale: float | None, window_size: list[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the gradients of q, k and v, with 0 for rows that see no key, or no query, or are no sequence's."""
    if 0 in (q.shape[0], q.shape[1], k.shape[0], cu_q.shape[0] - 1):
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    mask = masked(causal, window_size)
    left, right = sides(mask)
    rng_state, unused = (q.new_empty(shape, dtype=torch.uint64) for shape in ((2,), ()))
    # It takes the LSE of a row without keys for +inf, so that every exponential is 0.
    lse = lse.masked_fill(lse.isneginf(), float("inf"))
    options = {"scale": scale, "window_size_left": left, "window_size_right": right}
    found = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, output, lse, cu_q, cu_k, max_q, max_k, 0.0, mask == CAUSAL, rng_state, unused, **options
    )
    dq, dk, dv = (x.masked_fill_(_unused(cu, x), 0) for cu, x in zip((cu_q, cu_k, cu_k), found))
    return dq.masked_fill_(lse.isposinf().t()[..., None], 0), dk, dv


def _unused(cu_seqlens: Tensor, rows: Tensor) -> Tensor:
    """Returns which rows are no sequence's, as bools (total, 1, 1)."""
    number = torch.arange(rows.shape[0], device=rows.device, dtype=torch.int32)
    return ((number < cu_seqlens[0]) | (number >= cu_seqlens[-1]))[:, None, None]


def _gradients_without_data(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any, **options: Any) -> Any:
    return tuple(torch.empty_like(x) for x in (q, k, v))


torch.library.define(NAME, SCHEMA)
torch.library.register_fake(NAME)(_fake)
torch.library.register_autograd(NAME, _backward, setup_context=_setup_context)
torch.library.define(GRADIENT, GRADIENT_SCHEMA)
torch.library.impl(GRADIENT, "CompositeExplicitAutograd")(_gradients)
torch.library.register_fake(GRADIENT)(_gradients_without_data)
torch.library.register_autograd(GRADIENT, no_second)
