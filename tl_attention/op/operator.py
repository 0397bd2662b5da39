"""`torch.ops.tl_attention.forward`: `attention` for torch.compile, torch.export and autograd.

Its kernel is `attention` itself, which registers it; here are its schema, what it gives without data, and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import arguments
from tl_attention.op.arguments import Given
from tl_attention.op.backward import check_has_backward, forward_only
from tl_attention.op.in_memory import BHSD, empty, other_way
from tl_attention.problem.features import INPUTS, NUMBERS
from tl_attention.problem.window import OPEN
from tl_attention.schedule.schedule import Schedule

NAME = "tl_attention::forward"
HERE = "under torch.compile, torch.export or a gradient"
# What features add: tensors stand before the options.
PER_HEAD = tuple(feature for feature in INPUTS if not feature.is_number)
TENSORS = "".join(f"Tensor? {feature.word}=None, " for feature in PER_HEAD)
FLOATS = "".join(f"float {feature.word}={feature.off}, " for feature in NUMBERS)
# Without return_lse the second result is empty. The LSE has no gradient.
SCHEMA = (
    f"(Tensor q, Tensor k, Tensor v, {TENSORS}*, bool causal=False, float? scale=None, int[2] window_size=[-1, -1], "
    f"{FLOATS}str layout='bhsd', bool return_lse=False, str? schedule=None, bool specialize=False) -> (Tensor, Tensor)"
)


def is_needed(*given: Any) -> bool:
    """Whether a call of `attention` with these, q first, goes through the operator: it is written down, or has a gradient."""
    return _is_traced(given[0]) or requires_gradient(*given)


def _is_traced(tensor: object) -> bool:
    """Whether what is done to it is written down: by torch.compile, or by its class, as those of torch.export do."""
    # Not is_compiling(): it is true in all threads while one of them compiles.
    if torch.compiler.is_dynamo_compiling():
        return True
    if type(tensor) is Tensor or not isinstance(tensor, Tensor):
        return False
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def requires_gradient(*given: Any) -> bool:
    """Whether what comes of these, of which some are tensors, has a gradient."""
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given)


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Given,
    out: Tensor | None,
    schedule: Schedule | str | Path | None,
    *,
    return_lse: bool,
    specialize: bool,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` through the operator: the arguments are its own."""
    gradient = requires_gradient(q, k, v, *given.values())
    # Before the dispatcher, whose own refusals have several lines.
    arguments.check_without_data(q, k, v, given, **options, return_lse=return_lse, specialize=specialize)
    if gradient and not _is_traced(q):
        # Of what is traced `_setup_context` asks; here no kernel is to run before a call is refused.
        check_has_backward(q, k, v, given, **options)
    if gradient and return_lse:
        raise forward_only("return_lse", "without it: the LSE has no gradient")
    if gradient and out is not None:
        raise forward_only("out", "without it")
    if out is not None:
        raise InputError(f"attention: out is given {HERE}, expected none")
    if schedule is not None and not isinstance(schedule, (str, Path)):
        raise InputError(f"attention: schedule is {type(schedule).__name__} {HERE}, expected a name, a file or a label")
    name = None if schedule is None else str(schedule)
    # The backward reads the LSE.
    chosen = {"return_lse": return_lse or gradient, "schedule": name, "specialize": specialize}
    tensors = (given[feature.word] for feature in PER_HEAD)
    options |= {feature.word: given[feature.word] for feature in NUMBERS}
    output, lse = torch.ops.tl_attention.forward(q, k, v, *tensors, **options, **chosen)
    return (output, lse) if return_lse else output


def _given(tensors: Sequence[Tensor | None], options: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator was given for features, by word: trailing tensors and options may be left out."""
    numbers = {feature.word: options.get(feature.word, feature.off) for feature in NUMBERS}
    return numbers | {f.word: tensor for f, tensor in zip_longest(PER_HEAD, tensors)}


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *tensors: Tensor | None,
    causal: bool = False,
    scale: float | None = None,
    window_size: Sequence[int] = (OPEN, OPEN),
    layout: str = BHSD,
    return_lse: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    options: dict[str, Any] = {"causal": causal, "scale": scale, "window_size": tuple(window_size)}
    q, k, v = arguments.check_without_data(q, k, v, _given(tensors, others), layout=layout, **options)
    output = empty(q, (*q.shape[:3], v.shape[3]), layout)
    return other_way(output, layout), q.new_empty(q.shape[:3] if return_lse else (0,), dtype=torch.float32)


def _setup_context(ctx: Any, inputs: Any, keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *tensors = inputs
    options = keyword_only_inputs
    own = {name: options[name] for name in ("causal", "scale", "window_size", "layout")}
    check_has_backward(q, k, v, _given(tensors, options), **own)
    if not options["return_lse"]:
        raise InputError(f"attention: an input of {NAME} requires a gradient, expected return_lse=True then")
    ctx.save_for_backward(q, k, v, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.options = own


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*torch.ops.tl_attention.backward(grad, *ctx.saved_tensors, **ctx.options), *[None] * len(PER_HEAD))


def implemented_by(attention: Callable[..., Any]) -> None:
    """Register the function that the operator runs, for tensors on every device: it names those that are not ours."""

    @torch.no_grad()
    def forward(q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
        # A list from the dispatcher; only what has a hash leaves a plan.
        if "window_size" in options:
            options["window_size"] = tuple(options["window_size"])
        found = attention(q, k, v, **_given(tensors, options) | options)
        return found if options.get("return_lse") else (found, q.new_empty((0,), dtype=torch.float32))

    torch.library.impl(NAME, "CompositeExplicitAutograd")(forward)


torch.library.define(NAME, SCHEMA)
torch.library.register_fake(NAME)(_fake)
torch.library.register_autograd(NAME, _backward, setup_context=_setup_context)
