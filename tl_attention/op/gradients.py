"""Which calls need a gradient, which are traced, and which have no gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import checks, pair
from tl_attention.op.call import Call
from tl_attention.problem.card import HOPPER
from tl_attention.problem.features import INPUTS
from tl_attention.problem.mask import Mask, kind_of
from tl_attention.schedule.files.backward import backward_rules, case_of

OF_LSE = "return_lse", "without it: the LSE has no gradient"


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


def check_has_gradient(call: Call, mask: Mask, of_lse: bool = False) -> None:
    """Raises InputError for a call whose gradients neither PyTorch's operators nor a pair of schedules compute.

    `of_lse` says whether the LSE has to have a gradient, too. Either computes any scale.
    """
    lacking = lacks_gradient(call, mask) or (OF_LSE if of_lse else None)
    if lacking and not has_pair(call, mask, of_lse):
        raise forward_only(*lacking)


def lacks_gradient(call: Call, mask: Mask) -> tuple[str, str] | None:
    """Returns words for an error if PyTorch's operators have no gradient of what a call asks for, else None."""
    for feature, value in zip(INPUTS, call.values):
        is_asked = bool(value) if feature.is_number else value is not None
        if is_asked and not feature.has_gradient:
            what = f"{feature.word} {value}" if feature.is_number else feature.words
            return what, f"without {feature.words}"
    found: tuple[str, str] | None = call.where.lacks_gradient(call, mask)
    return found


def has_pair(call: Call, mask: Mask, of_lse: bool = False) -> bool:
    """Says whether the call names a pair, or rules have one that may compute its gradients. Lengths may be symbols."""
    # Autograd does not see new keys of a cache that a call writes.
    if call.where.pages is not None or call.where.write is not None:
        return False
    if call.backward is not None:
        return True
    problem, strided = pair.of_call(call, mask)
    problem = problem.asking(lse=of_lse)
    # A card need not be here while a call is traced.
    arch = HOPPER.arch if is_traced(call.q) else checks.checked_card(call.q.device).arch
    pairs = backward_rules().pairs(case_of(problem, arch)._replace(mask=kind_of(problem.mask)))
    return any(not pair.why_not(names, problem, strided, arch) for names in pairs)


def forward_only(what: str, instead: str) -> InputError:
    """Returns the InputError that there is no backward with `what`, though an input requires a gradient.

    `instead` is what to do instead.
    """
    return InputError(
        f"attention: an input requires a gradient, and with {what} there is no backward: call it under "
        f"torch.no_grad(), or {instead}"
    )
