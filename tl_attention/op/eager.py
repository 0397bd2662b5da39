"""A call that needs a gradient is one node of autograd's graph, made without PyTorch's dispatcher.

Where a call is traced, the operators of operator.py and varlen_operator.py have the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tl_attention.op.backward import Gradients
from tl_attention.op.packed_arguments import LONGEST, Offsets
from tl_attention.op.plan import Values
from tl_attention.problem.features import BY_WORD, INPUTS, NOTHING, Asked
from tl_attention.problem.mask import WIDEST

# The place of sinks among a call's values.
SINKS = INPUTS.index(BY_WORD["sinks"])
# (grad, q, k, v, output, lse, sinks, offsets) to the gradients of q, k, v and sinks; sinks are None where they need none.
Backward = Callable[..., Gradients]


class Node(torch.autograd.Function):
    """A Node computes the output of a call as its plan says, and gradients of q, k, v and sinks.

    `given` are the plan's arguments behind v, and `own` the options of the gradients that belong to this call. Offsets
    say where packed sequences lie.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: Dense | Packed, given: tuple[Any, ...], own: dict[str, Any], q: Tensor, k: Tensor, v: Tensor,
        sinks: Tensor | None, *offsets: Tensor,
    ) -> Tensor:  # fmt: skip
        output, lse = plan.forward(q, k, v, given)
        ctx.save_for_backward(q, k, v, output, lse, sinks, *offsets)
        ctx.plan, ctx.own = plan, own
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needed = ctx.needs_input_grad
        if grads[0] is None:
            return (None,) * len(needed)
        # Read once: torch.utils.checkpoint computes again what is read, and refuses to do so twice.
        q, k, v, output, lse, sinks, *offsets = ctx.saved_tensors
        # With create_graph=True gradients are enabled here, and the operator says that they have no gradient.
        of = ctx.plan.gradients[torch.is_grad_enabled()]
        wanted = sinks if needed[6] else None
        dq, dk, dv, dsinks = of(grads[0], q, k, v, output, lse, wanted, *offsets, **ctx.own, **ctx.plan.own)
        return (None, None, None, dq, dk, dv, dsinks if needed[6] else None, *[None] * len(offsets))


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
    """Says whether no transform of torch.func is active, for which a Node has no rule, and no dispatch mode.

    A mode, as of selective checkpointing, has to see the call as one operator.
    """
    return not (torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack())


@dataclass(slots=True)
class Differentiable:
    """A Differentiable is the plan of calls that need a gradient: it makes a Node of each.

    `function` is the public function. `gradients` are the function that computes its gradients, and the operator of
    them; `own` are their options and `options` the call's, without the scale. `plan` is the forward pass's, once known.
    """

    function: Callable[..., Any]
    gradients: tuple[Backward, Backward]
    own: Mapping[str, Any]
    options: Mapping[str, Any]
    head_dim: int
    plan: Any = None
    # A softcap has no gradient, and no other feature limits the scale.
    asked: Asked = NOTHING

    def serves(self, *given: Any) -> bool:
        """Says whether the plan may launch a call of its key."""
        return is_plain()


class Dense(Differentiable):
    """This is the plan of `attention`."""

    __slots__ = ()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, given: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Returns the output and the LSE of a call."""
        values, scale = given
        if self.plan is not None and self.plan.serves(q, k, v, values, None, self.options["schedule"]):
            found: tuple[Tensor, Tensor] = self.plan.run(q, k, v, values, None, scale)
        else:
            found = self.function(q, k, v, sinks=values[SINKS], scale=scale, **self.options)
        return found

    def run(self, q: Tensor, k: Tensor, v: Tensor, values: Values, out: Tensor | None, scale: float) -> Tensor:
        """Computes the output of a call, which has no `out`."""
        output: Tensor = Node.apply(self, (values, scale), {"scale": scale}, q, k, v, values[SINKS])
        return output


class Packed(Differentiable):
    """This is the plan of `attention_varlen`."""

    __slots__ = ()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, given: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Returns the output and the LSE of a call."""
        where, values, scale = given
        found: tuple[Tensor, Tensor] = self.function(q, k, v, *where, sinks=values[SINKS], scale=scale, **self.options)
        return found

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, offsets: Offsets, longest: tuple[int, int], values: Values,
        out: Tensor | None, scale: float, zero_unused: bool,
    ) -> Tensor:  # fmt: skip
        """Computes the output of a call, which has neither `out` nor used lengths."""
        # PyTorch's integers have 64 bits.
        most = (min(length, WIDEST) for length in longest)
        where, own = (*offsets[:2], *longest), dict(zip(LONGEST, most), scale=scale)
        output: Tensor = Node.apply(self, (where, values, scale), own, q, k, v, values[SINKS], *offsets[:2])
        return output
