"""A call that needs a gradient is one node of autograd's graph, made without PyTorch's dispatcher.

Where a call is traced, the operators of operator.py have the same gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tl_attention.op.aten import Saved
from tl_attention.op.call import Call, Result
from tl_attention.op.operator import GRADIENTS, SINKS, call_operator, options_of_gradient
from tl_attention.op.plan import Plan
from tl_attention.problem.features import FeatureValues


class Node(torch.autograd.Function):
    """A Node computes the output of a call as its plan says, and gradients of q, k, v and sinks.

    It gives the LSE too if the call asks for it. Packed sequences lie where the call's `offsets` say.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, call: Call, scale: float, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None,
        *offsets: Tensor,
    ) -> Result:  # fmt: skip
        output, lse = plan.run(call, scale)
        ctx.save_for_backward(q, k, v, output, lse, sinks, *offsets)
        ctx.gradients, ctx.own = GRADIENTS[type(call.where)], options_of_gradient(call, scale)
        # A gradient that is none is 0 beside the other's.
        ctx.set_materialize_grads(call.return_lse)
        return (output, lse) if call.return_lse else output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needed = ctx.needs_input_grad
        if grads[0] is None:
            return (None,) * len(needed)
        # Read once: torch.utils.checkpoint computes again what is read, and refuses to do so twice.
        q, k, v, output, lse, sinks, *offsets = ctx.saved_tensors
        given, others = Saved(grads[0], q, k, v, output, lse), (sinks if needed[6] else None, *offsets)
        own = {**ctx.own, "d_lse": grads[1]} if grads[1:] else ctx.own
        compute, operator = ctx.gradients
        # With create_graph=True gradients are enabled here, and the operator says that they have no gradient.
        again = torch.is_grad_enabled()
        dq, dk, dv, dsinks = operator(*given, *others, **own) if again else compute(given, *others, **own)
        return (None, None, None, dq, dk, dv, dsinks if needed[6] else None, *[None] * len(offsets))


def is_plain() -> bool:
    """Says whether neither a transform of torch.func nor a dispatch mode is active, for which a Node has no rule.

    A mode, as of selective checkpointing, has to see the call as one operator.
    """
    return not (torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack())


@dataclass(frozen=True, slots=True)
class GradientPlan:
    """A GradientPlan runs calls that need a gradient: it makes a Node of autograd's graph of each."""

    plan: Plan  # of the forward pass
    scale: float
    asked: FeatureValues  # features, which a given scale has to go with

    def serves(self, call: Call) -> bool:
        """Says whether the plan may launch a call of its key."""
        return not is_plain() or self.plan.serves(call)

    def run(self, call: Call, scale: float) -> Result:
        """Computes the results of a call that will be differentiated, and keeps what its backward needs."""
        if not is_plain():
            return call_operator(call)
        result: Result = Node.apply(self.plan, call, scale, *call[:3], call.values[SINKS], *call.where.offsets)
        return result
