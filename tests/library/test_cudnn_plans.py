"""Gradients that lie otherwise in memory take no plan of cuDNN's that was made for others; cuDNN is a stand-in."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from gradients import OPEN, Operators, exact, operators, visible
from on_cpu import Kernels, on_cpu
from test_backward import drawn, found_and_exact
from test_backward_choice import SQUARE, at_once
from torch import Tensor

from tl_attention import attention
from tl_attention.op import aten
from tl_attention.schedule.files.backward import CUDNN

__all__ = ["at_once", "on_cpu", "operators"]

# How the output's gradient, (1, 2, 65, 64), may lie.
PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": Tensor.clone,
    "by rows": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded": lambda x: x[:, :1, :1, :1].expand(x.shape),
    "one row": lambda x: x[:, :, :1].expand(x.shape),
    "every other column": lambda x: torch.stack([x, x], dim=-1).flatten(3)[..., ::2],
    "by columns": lambda x: x.mT.contiguous().mT,
    "behind an odd address": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "within odd rows": lambda x: torch.nn.functional.pad(x, (0, 3))[..., :64],
}


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_gradients_that_lie_otherwise_take_no_plan_of_others(
    layout, on_cpu: Kernels, operators: Operators, at_once
) -> None:
    q, k, v, grad = drawn(SQUARE, layout)
    for name in (*PLACES, *PLACES):
        found, expected = found_and_exact(q, k, v, PLACES[name](grad), (OPEN, OPEN), layout)
        for gradient, value in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient.double(), value, atol=0.02, rtol=0.02)
    attention(q, k, v, layout=layout).sum().backward()
    assert operators.taken == (2 * len(PLACES) + 1) * [CUDNN]


def test_outputs_that_lie_otherwise_take_no_plan_of_others_nor_of_pytorchs_own_calls(operators: Operators) -> None:
    q, k, v, grad = (x.detach() for x in drawn(SQUARE, "bhsd"))
    scores = q.float() @ k.float().mT / 8
    lse, output = scores.logsumexp(dim=3), (scores.softmax(dim=3) @ v.float()).half()
    expected = exact(q, k, v, grad, visible(65, 65), 0.125)
    state = (lse, lse, None, None, None)
    own = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    for of_output, of_grad in itertools.product([*PLACES.values()][:2], repeat=2):
        given = aten.Saved(of_grad(grad), q, k, v, of_output(output), lse)
        found = [aten.cudnn(given, False, None)]
        if of_output is of_grad is Tensor.clone:
            found.append(own(*given[:5], lse[..., None], *state, 65, 65, 0.0, False))
        for gradient, wanted in itertools.chain(*(zip(gradients, expected, strict=True) for gradients in found)):
            torch.testing.assert_close(gradient.double(), wanted, atol=0.02, rtol=0.02)
