"""Which calls need a gradient, which are traced, and which have no gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op.call import Call
from tl_attention.problem.features import INPUTS
from tl_attention.problem.mask import Mask


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


def check_has_gradient(call: Call, mask: Mask) -> None:
    """Raises InputError for features without a gradient, or a mask that the backward lacks. It computes any scale."""
    for feature, value in zip(INPUTS, call.values):
        is_asked = bool(value) if feature.is_number else value is not None
        if is_asked and not feature.has_gradient and call.backward is None:
            what = f"{feature.word} {value}" if feature.is_number else feature.words
            raise forward_only(what, f"without {feature.words}")
    if lacking := call.where.lacks_gradient(call, mask):
        raise forward_only(*lacking)


def forward_only(what: str, instead: str) -> InputError:
    """Returns the InputError that there is no backward with `what`, though an input requires a gradient.

    `instead` is what to do instead.
    """
    return InputError(
        f"attention: an input requires a gradient, and with {what} there is no backward: call it under "
        f"torch.no_grad(), or {instead}"
    )
