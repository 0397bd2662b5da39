"""The operators `forward` and `forward_varlen` of `torch.ops.tl_attention` serve torch.compile, export and autograd.

One factory makes both, each with its schema, its results without data, and the operator of its gradient, which
backward.py computes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import backward
from tl_attention.op.aten import Saved
from tl_attention.op.batch import Batch
from tl_attention.op.call import NO_WINDOW, OFF, Call, Result
from tl_attention.op.gradients import check_has_gradient, requires_gradient
from tl_attention.op.packed import Packed
from tl_attention.op.pair import check_serves, texts_of
from tl_attention.op.run import forward
from tl_attention.problem.features import BY_WORD, INPUTS
from tl_attention.problem.mask import masked
from tl_attention.schedule.schedule import Schedule

HERE = "under torch.compile, torch.export or a gradient"
# The places of features that are tensors, which stand before the options, and of those that are numbers among these.
PER_HEAD = [place for place, feature in enumerate(INPUTS) if not feature.is_number]
NUMBERS = [place for place, feature in enumerate(INPUTS) if feature.is_number]
TENSORS = "".join(f"Tensor? {INPUTS[place].word}=None, " for place in PER_HEAD)
FLOATS = "".join(f"float {INPUTS[place].word}={OFF[place]}, " for place in NUMBERS)
# The place of sinks among all features: no other tensor of a feature has a gradient.
SINKS = INPUTS.index(BY_WORD["sinks"])


def call_operator(call: Call) -> Result:
    """Calls the operator with a call's arguments, and returns what the public function returns.

    Raises InputError for arguments that the operator has not.
    """
    where, schedule = call.where, call.schedule
    for name, is_given in {"out": call.out is not None, "check": call.check}.items():
        if is_given:
            raise InputError(f"{where.function}: {name} is given {HERE}, expected none")
    if schedule is not None and not isinstance(schedule, (str, Path)):
        found = type(schedule).__name__
        raise InputError(f"{where.function}: schedule is {found} {HERE}, expected a name, a file or a label")
    if isinstance(call.backward, (tuple, list)) and any(isinstance(one, Schedule) for one in call.backward):
        raise InputError(f"{where.function}: backward has a Schedule {HERE}, expected names, files or labels")
    options: dict[str, Any] = {
        **{
            name: getattr(call, name)
            for name in ("causal", "scale", "window_size", "invariant", "in_parts", where.flag)
        },
        **{INPUTS[place].word: call.values[place] for place in NUMBERS},
        # The backward reads the LSE.
        "return_lse": call.return_lse or requires_gradient(*call[:3], *call.values),
        "schedule": None if schedule is None else str(schedule),
    }
    options |= _pair_of(call)
    tensors = (call.values[place] for place in PER_HEAD)
    of = getattr(torch.ops.tl_attention, where.operator)
    given = (*where.operator_arguments, *tensors, *where.arguments_behind)
    output, lse = of(*call[:3], *given, **options, **where.operator_options)
    return (output, lse) if call.return_lse else output


def options_of_gradient(call: Call, scale: float | None) -> dict[str, Any]:
    """Returns what the gradients of a call need beside tensors."""
    options = {"causal": call.causal, "scale": scale, "window_size": call.window_size} | _pair_of(call)
    options |= {INPUTS[place].word: call.values[place] for place in NUMBERS if call.values[place]}
    return options | call.where.operator_options | call.where.longest


def _pair_of(call: Call) -> dict[str, Any]:
    """Returns the option that names a call's pair of schedules, if it has one."""
    return {} if call.backward is None else {"backward": texts_of(call.backward)}


def define(kind: type[Batch] | type[Packed], compute: Callable[..., backward.Gradients]) -> Callable[..., Any]:
    """Registers the operators of a kind of call, Batch or Packed: the forward's, and its gradient's by `compute`.

    It returns the operator of the gradient.
    """
    # Arguments that say where tensors lie stand between v and the features.
    between, behind, layout = kind.schema.count(","), kind.behind.count(","), kind.layout_option
    name, of_gradient = f"tl_attention::{kind.operator}", kind.operator.replace("forward", "backward")
    _register(
        f"tl_attention::{of_gradient}(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor output, Tensor lse, Tensor? sinks, "
        f"{kind.gradient_schema}*, bool causal, float? scale, int[2] window_size{layout and f', {layout}'}, {FLOATS.removesuffix(', ')}) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        *(_gradients_without_data, _all_tensors(compute), _no_second),
    )
    gradient: Callable[..., Any] = getattr(torch.ops.tl_attention, of_gradient)

    def call_of(q: Tensor, k: Tensor, v: Tensor, *given: Any, **options: Any) -> Call:
        """Returns the Call that the operator was given, whose trailing tensors and options may be left out."""
        of_heads = between + len(PER_HEAD)
        where, tensors = kind.from_operator(given[:between], given[of_heads:], options), given[between:of_heads]
        get, values = options.get, [*OFF]
        for place in NUMBERS:
            values[place] = get(INPUTS[place].word, OFF[place])
        for place, tensor in zip(PER_HEAD, tensors):
            values[place] = tensor
        # Lists from the dispatcher; only what has a hash leaves a plan.
        options["window_size"] = tuple(get("window_size", NO_WINDOW))
        if (pair := get("backward")) is not None:
            options["backward"] = tuple(pair)
        return Call(q, k, v, where, tuple(values), **{name: options[name] for name in Call._fields if name in options})

    def run(*given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        call = call_of(*given, **options)
        results = forward(call)
        return results if isinstance(results, tuple) else (results, call.q.new_empty((0,), dtype=torch.float32))

    def without_data(*given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        call = call_of(*given, **options)
        output, lse = call.results(call.return_lse)
        return output, call.q.new_empty((0,), dtype=torch.float32) if lse is None else lse

    def setup_context(
        ctx: Any, inputs: Any, keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]
    ) -> None:
        call = call_of(*inputs, **keyword_only_inputs)
        mask = masked(call.causal, call.window_size)
        check_has_gradient(call, mask)
        if call.backward is not None:
            check_serves(call, mask)
        if not call.return_lse:
            raise InputError(f"{kind.function}: an input of {name} requires a gradient, expected return_lse=True then")
        ctx.save_for_backward(*call[:3], *output, call.values[SINKS], *call.where.offsets)
        ctx.own = options_of_gradient(call, call.scale)
        ctx.set_materialize_grads(False)

    def backward_of(ctx: Any, grad: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        # Read once: torch.utils.checkpoint computes again what is read, and refuses to do so twice.
        saved = ctx.saved_tensors
        needed = saved[5] is not None and ctx.needs_input_grad[3 + between + PER_HEAD.index(SINKS)]
        grad, of_lse = torch.zeros_like(saved[3]) if grad is None else grad, {} if d_lse is None else {"d_lse": d_lse}
        gradients = gradient(grad, *saved[:5], saved[5] if needed else None, *saved[6:], **of_lse, **ctx.own)
        of_heads = (gradients[3] if needed and place == SINKS else None for place in PER_HEAD)
        return (*gradients[:3], *[None] * between, *of_heads, *[None] * behind)

    options = f"{FLOATS}{kind.options_schema}bool return_lse=False, str? schedule=None, bool {kind.flag}=False, "
    _register(
        f"{name}(Tensor q, Tensor k, Tensor v, {kind.schema}{TENSORS}{kind.behind}*, bool causal=False, float? scale=None, "
        f"int[2] window_size=[-1, -1], {options}bool? invariant=None, bool in_parts=True) -> (Tensor, Tensor)",
        *(without_data, run, backward_of, setup_context),
    )
    return gradient


def _register(schema: str, fake: Callable[..., Any], run: Callable[..., Any], *of: Callable[..., Any]) -> None:
    """Registers an operator: what it returns without data, what it runs on every device, and its gradient."""
    name, _, arguments = schema.partition("(")
    torch.library.define(name, f"({arguments}")
    torch.library.register_fake(name)(fake)
    torch.library.impl(name, "CompositeExplicitAutograd")(run)
    torch.library.register_autograd(name, of[0], **dict(zip(["setup_context"], of[1:])))


def _gradients_without_data(*given: Any, **options: Any) -> tuple[Tensor, ...]:
    q, sinks = given[1], given[6]
    of_sinks = q.new_empty(sinks.shape if sinks is not None else (0,), dtype=torch.float32)
    return *map(torch.empty_like, given[1:4]), of_sinks


def _all_tensors(compute: Callable[..., backward.Gradients]) -> Callable[..., tuple[Tensor, ...]]:
    """Returns the function with an empty tensor in the place of None, as results of operators are all tensors."""

    def found(*given: Any, **options: Any) -> tuple[Tensor, ...]:
        *others, of_sinks = compute(Saved(*given[:6]), *given[6:], **options)
        return *others, given[0].new_empty((0,), dtype=torch.float32) if of_sinks is None else of_sinks

    return found


def _no_second(ctx: object, *grads: Tensor) -> None:
    raise InputError("attention: the gradient of a gradient is asked for, and there is none")


# By where tensors lie, the function that computes gradients, and the operator that does.
GRADIENTS: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
    Batch: (backward.dense, define(Batch, backward.dense)),
    Packed: (backward.packed, define(Packed, backward.packed)),
}
