"""The operator `torch.ops.tl_attention.forward` is `attention` for torch.compile, torch.export and autograd.

The operator runs `attention` itself, which attention.py registers. This module has the operator's schema, its result
without data, and the operator of its gradient, which backward.py computes. It also says which calls have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import arguments, backward
from tl_attention.op.arguments import Given
from tl_attention.op.in_memory import BHSD, empty, other_way
from tl_attention.problem.features import BY_WORD, INPUTS, NUMBERS
from tl_attention.problem.mask import OPEN, masked
from tl_attention.schedule.files.backward import masks_alike
from tl_attention.schedule.schedule import Schedule

NAME, GRADIENT = "tl_attention::forward", "tl_attention::backward"
HERE = "under torch.compile, torch.export or a gradient"
# The arguments that features add: tensors stand before the options.
PER_HEAD = tuple(feature for feature in INPUTS if not feature.is_number)
SINKS = BY_WORD["sinks"]
TENSORS = "".join(f"Tensor? {feature.word}=None, " for feature in PER_HEAD)
FLOATS = "".join(f"float {feature.word}={feature.off}, " for feature in NUMBERS)
# The options that a backward has, too.
OPTIONS = ("causal", "scale", "window_size", "layout")
# Without return_lse the second result is empty. The LSE has no gradient.
SCHEMA = (
    f"(Tensor q, Tensor k, Tensor v, {TENSORS}*, bool causal=False, float? scale=None, int[2] window_size=[-1, -1], "
    f"{FLOATS}str layout='bhsd', bool return_lse=False, str? schedule=None, bool specialize=False, bool? invariant=None) -> (Tensor, Tensor)"
)
GRADIENT_SCHEMA = (
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor output, Tensor lse, Tensor? sinks, *, bool causal, float? scale, "
    "int[2] window_size, str layout) -> (Tensor, Tensor, Tensor, Tensor)"
)


def is_needed(*given: Any) -> bool:
    """Says whether a call must be the torch operator's, as its first argument is traced or any needs a gradient."""
    return is_traced(given[0]) or requires_gradient(*given)


def is_traced(tensor: object) -> bool:
    """Says whether torch.compile traces this code, or the tensor's class traces its operations, as in torch.export."""
    # Not is_compiling(): it is true in all threads while one of them compiles.
    if torch.compiler.is_dynamo_compiling():
        return True
    if type(tensor) is Tensor or not isinstance(tensor, Tensor):
        return False
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def requires_gradient(*given: Any) -> bool:
    """Says whether gradients are enabled and one of these arguments is a tensor that requires one."""
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given)


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Given,
    schedule: Schedule | str | Path | None,
    where: tuple[Any, ...] = (),
    *,
    return_lse: bool,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Calls `torch.ops.tl_attention.forward` with `attention`'s arguments, and returns what `attention` returns.

    With `where`, which says where packed sequences lie, it is the operator of `attention_varlen`.
    """
    of = torch.ops.tl_attention.forward_varlen if where else torch.ops.tl_attention.forward
    options["schedule"] = name_of(schedule, "attention_varlen" if where else "attention")
    # The backward reads the LSE.
    options["return_lse"] = return_lse or requires_gradient(q, k, v, *given.values())
    options |= {feature.word: given[feature.word] for feature in NUMBERS}
    output, lse = of(q, k, v, *where, *(given[feature.word] for feature in PER_HEAD), **options)
    return (output, lse) if return_lse else output


def check(q: Tensor, k: Tensor, v: Tensor, given: Given, out: Tensor | None, **options: Any) -> None:
    """Raises InputError for arguments that are wrong, that the operator lacks, or that have no gradient and need one."""
    # Before the dispatcher, whose own refusals have several lines.
    arguments.checked_call(q, k, v, given, **options)
    if requires_gradient(q, k, v, *given.values()):
        own = {name: options[name] for name in OPTIONS}
        check_has_backward(q, k, given, **own)
        refuse({"return_lse": options["return_lse"], "out": out is not None})
    if out is not None:
        raise InputError(f"attention: out is given {HERE}, expected none")


def refuse(given: Mapping[str, bool]) -> None:
    """Raises InputError for the first of these arguments that is given though a gradient is needed."""
    for name, there in given.items():
        if there:
            raise forward_only(name, "without it: the LSE has no gradient" if name == "return_lse" else "without it")


def name_of(schedule: Schedule | str | Path | None, function: str) -> str | None:
    """Returns a call's schedule as an operator takes it. Raises InputError, with the function's name, for a Schedule."""
    if schedule is not None and not isinstance(schedule, (str, Path)):
        raise InputError(
            f"{function}: schedule is {type(schedule).__name__} {HERE}, expected a name, a file or a label"
        )
    return None if schedule is None else str(schedule)


def given_of(tensors: Sequence[Tensor | None], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a dict from each feature's word to the value that the operator was given, or to the value for off.

    Trailing tensors and options may be left out.
    """
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
    q, k, v, *_ = arguments.checked_call(q, k, v, given_of(tensors, others), layout=layout, **options)
    output = empty(q, (*q.shape[:3], v.shape[3]), layout)
    return other_way(output, layout), q.new_empty(q.shape[:3] if return_lse else (0,), dtype=torch.float32)


def _setup_context(ctx: Any, inputs: Any, keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *tensors = inputs
    options = keyword_only_inputs
    own = {name: options[name] for name in OPTIONS}
    given = given_of(tensors, options)
    check_has_backward(q, k, given, **own)
    save(ctx, NAME, (q, k, v, *output, given["sinks"]), options["return_lse"])
    ctx.options = own


def save(ctx: Any, name: str, tensors: tuple[Tensor | None, ...], return_lse: bool) -> None:
    """Keeps q, k, v, output, LSE, sinks and others of a call of an operator. Raises InputError for one without the LSE."""
    if not return_lse:
        function = name.partition("::")[2].replace("forward", "attention")
        raise InputError(f"{function}: an input of {name} requires a gradient, expected return_lse=True then")
    ctx.save_for_backward(*tensors)
    ctx.mark_non_differentiable(tensors[4])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *saved, sinks = ctx.saved_tensors
    needed = sinks is not None and ctx.needs_input_grad[3 + PER_HEAD.index(SINKS)]
    found = torch.ops.tl_attention.backward(grad, *saved, sinks if needed else None, **ctx.options)
    return gradients_of(found, needed)


def gradients_of(found: Sequence[Tensor], needed: bool, others: int = 0) -> tuple[Tensor | None, ...]:
    """Returns the gradients of an operator's tensors, of which `others`, that have none, stand behind q, k and v."""
    of_heads = (found[3] if needed and feature is SINKS else None for feature in PER_HEAD)
    return (*found[:3], *[None] * others, *of_heads)


def implemented_by(attention: Callable[..., Any], name: str = NAME, where: Sequence[str] = ()) -> None:
    """Registers `attention` as the function that the operator of this name runs, on every device.

    The function's own errors name the devices that have no kernel. `where` are the names of arguments that the operator
    has behind v, before the features' tensors.
    """

    @torch.no_grad()
    def forward(q: Tensor, k: Tensor, v: Tensor, *given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        # A list from the dispatcher; only what has a hash leaves a plan.
        if "window_size" in options:
            options["window_size"] = tuple(options["window_size"])
        found = attention(q, k, v, **dict(zip(where, given)), **given_of(given[len(where) :], options) | options)
        return found if options.get("return_lse") else (found, q.new_empty((0,), dtype=torch.float32))

    torch.library.impl(name, "CompositeExplicitAutograd")(forward)


# --- its gradient ----------------------------------------------------------------------------------------------------


def forward_only(what: str, instead: str) -> InputError:
    """Returns the InputError that there is no backward with `what`, though an input requires a gradient.

    `instead` is what to do instead.
    """
    return InputError(
        f"attention: an input requires a gradient, and with {what} there is no backward: call it under "
        f"torch.no_grad(), or {instead}"
    )


def check_has_backward(
    q: Tensor, k: Tensor, given: Given, *, causal: bool, scale: float | None, window_size: Sequence[int], layout: str
) -> None:
    """Raises InputError for features without a gradient, or a mask that the backward lacks. Every scale has one."""
    refuse_features(given)
    seq_q, seq_kv = (other_way(x, layout).shape[2] for x in (q, k))
    if not masks_alike(masked(causal, window_size), seq_q, seq_kv):
        what = f"window_size {tuple(window_size)}, {seq_q} queries and {seq_kv} keys"
        raise forward_only(what, "with no more queries than keys")


def refuse_features(given: Given) -> None:
    """Raises InputError if a call has a feature that has no gradient."""
    for feature in INPUTS:
        value = given[feature.word]
        there = bool(value) if feature.is_number else value is not None
        if there and not feature.has_gradient:
            raise forward_only(
                f"{feature.word} {value}" if feature.is_number else feature.words, f"without {feature.words}"
            )


def _without_data(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, sinks: Tensor | None, *others: Any, **options: Any
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns gradients of q, k, v and sinks without data."""
    of_sinks = q.new_empty(sinks.shape if sinks is not None else (0,), dtype=torch.float32)
    return *(torch.empty_like(x) for x in (q, k, v)), of_sinks


def _no_second(ctx: object, *grads: Tensor) -> None:
    raise InputError("attention: the gradient of a gradient is asked for, and there is none")


def register(name: str, schema: str, fake: Callable[..., Any], of: Callable[..., Any], **more: Any) -> None:
    """Registers an operator of this name and schema: what it returns without data, and `of`, its gradient."""
    torch.library.define(name, schema)
    torch.library.register_fake(name)(fake)
    torch.library.register_autograd(name, of, **more)


def register_gradient(name: str, schema: str, gradients: Callable[..., backward.Gradients]) -> None:
    """Registers the operator that computes these gradients, which have none themselves.

    Its results are all tensors: an empty one for None.
    """

    def found(grad: Tensor, *given: Any, **options: Any) -> tuple[Tensor, ...]:
        *others, of_sinks = gradients(grad, *given, **options)
        return *others, grad.new_empty((0,), dtype=torch.float32) if of_sinks is None else of_sinks

    register(name, schema, _without_data, _no_second)
    torch.library.impl(name, "CompositeExplicitAutograd")(found)


register(NAME, SCHEMA, _fake, _backward, setup_context=_setup_context)
register_gradient(GRADIENT, GRADIENT_SCHEMA, backward.dense)
