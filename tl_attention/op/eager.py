"""A call that needs a gradient is one node of autograd's graph, made without PyTorch's dispatcher.

Where a call is traced, the operators of operator.py and varlen_operator.py have the same gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tl_attention.op.backward import Gradients
from tl_attention.op.packed_arguments import LONGEST, Offsets
from tl_attention.op.plan import Values
from tl_attention.problem.features import BY_WORD, INPUTS, NOTHING, Asked

# The place of sinks among a call's values.
SINKS = INPUTS.index(BY_WORD["sinks"])
# (q, k, v, sinks) to (output, LSE).
Forward = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
# (grad, q, k, v, output, lse, sinks, others) to the gradients of q, k, v and sinks; sinks are None where they need none.
Backward = Callable[..., Gradients]


class Node(torch.autograd.Function):
    """A Node computes the output by one function, and gradients of q, k, v and sinks by another.

    `twice` is the operator of the gradients, which says that they have no gradient themselves. `others` are what the
    gradients need besides.
    """

    @staticmethod
    def forward(
        ctx: Any, forward: Forward, backward: Backward, twice: Backward, q: Tensor, k: Tensor, v: Tensor,
        sinks: Tensor | None, *others: Tensor,
    ) -> Tensor:  # fmt: skip
        output, lse = forward(q, k, v, sinks)
        ctx.save_for_backward(q, k, v, output, lse, sinks, *others)
        ctx.of = backward, twice
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needed, none = ctx.needs_input_grad, (None, None, None)
        if grads[0] is None:
            return (None,) * len(needed)
        # Read once: torch.utils.checkpoint computes again what is read, and refuses to do so twice.
        q, k, v, output, lse, sinks, *others = ctx.saved_tensors
        # With create_graph=True gradients are enabled here.
        of = ctx.of[torch.is_grad_enabled()]
        *found, of_sinks = of(grads[0], q, k, v, output, lse, sinks if needed[6] else None, *others)
        return (*none, *found, of_sinks if needed[6] else None, *[None] * (len(needed) - 7))


def options_of(
    names: Iterable[str], asked_for: Mapping[str, Any], schedule: object
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a call's options, without the scale: those of these names, which its gradients have too, and all of them.

    All of them ask for the LSE, which the backward reads.
    """
    options = {name: given for name, given in asked_for.items() if name != "scale"}
    options |= {"return_lse": True, "schedule": schedule}
    return {name: options[name] for name in names if name in options}, options


def is_plain() -> bool:
    """Says whether no transform of torch.func is active, for which a Node has no rule."""
    return not torch._C._are_functorch_transforms_active()


@dataclass(frozen=True, slots=True)
class Differentiable:
    """A Differentiable is the plan of calls that need a gradient: it makes a Node of each.

    `function` is the public function, which finds the plan of the forward pass by itself. `gradients` are the function
    that computes its gradients, and the operator of them; `own` are their options and `options` the call's, without the
    scale.
    """

    function: Callable[..., Any]
    gradients: tuple[Backward, Backward]
    own: Mapping[str, Any]
    options: Mapping[str, Any]
    head_dim: int
    # A softcap has no gradient, and no other feature limits the scale.
    asked: Asked = NOTHING

    def serves(self, *given: Any) -> bool:
        """Says whether the plan may launch a call of its key."""
        return is_plain()

    def node(
        self, q: Tensor, k: Tensor, v: Tensor, values: Values, scale: float, offsets: tuple[Tensor, ...] = (), **longest: int
    ) -> Tensor:  # fmt: skip
        """Computes the output of a call. `offsets` and `longest` say where packed sequences lie."""

        def forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = self.function(
                q, k, v, *offsets, **longest, sinks=sinks, scale=scale, **self.options
            )
            return found

        of = (functools.partial(gradient, scale=scale, **self.own, **longest) for gradient in self.gradients)
        output: Tensor = Node.apply(forward, *of, q, k, v, values[SINKS], *offsets)
        return output


class Dense(Differentiable):
    """This is the plan of `attention`."""

    __slots__ = ()

    def run(self, q: Tensor, k: Tensor, v: Tensor, values: Values, out: Tensor | None, scale: float) -> Tensor:
        """Computes the output of a call, which has no `out`."""
        return self.node(q, k, v, values, scale)


class Packed(Differentiable):
    """This is the plan of `attention_varlen`."""

    __slots__ = ()

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, offsets: Offsets, longest: tuple[int, int], values: Values,
        out: Tensor | None, scale: float, zero_unused: bool,
    ) -> Tensor:  # fmt: skip
        """Computes the output of a call, which has neither `out` nor used lengths."""
        return self.node(q, k, v, values, scale, offsets[:2], **dict(zip(LONGEST, longest)))
