"""`attend` is what `attention` and `attention_varlen` do. It finds the way of a call that no plan serves."""

from __future__ import annotations

import operator

import torch

from tl_attention.op import checks, pair, run
from tl_attention.op.call import Call, Result
from tl_attention.op.checks import Checked
from tl_attention.op.eager import GradientPlan, is_plain
from tl_attention.op.gradients import check_has_gradient, forward_only, has_pair, is_traced, requires_gradient
from tl_attention.op.operator import call_operator
from tl_attention.op.plan import Key, Plan, key_of
from tl_attention.op.scalars import length, plain
from tl_attention.problem.mask import Mask


def attend(call: Call) -> Result:
    """Computes a call. Raises InputError for what is not supported."""
    return run.run(call, first_call)


def first_call(call: Call, key: Key | None) -> Result:
    """Computes a call that no plan serves, and keeps a plan for calls like it."""
    traced = is_traced(call.q)
    if ours := _with_pythons_numbers(call, traced):
        return attend(ours)
    checked, needs_gradient = checks.checked(call), requires_gradient(*call[:3], *call.values)
    if needs_gradient:
        # The operator asks this of a traced call: its own code is not traced.
        if not traced:
            check_has_gradient(call, checked.mask, of_lse=call.return_lse)
        for name in (name for name, given in {"out": call.out is not None, "check": call.check}.items() if given):
            raise forward_only(name, "without it")
    if traced or (needs_gradient and not is_plain()):
        return call_operator(call)
    if call.backward is not None:
        _find_pair(call, checked.mask if needs_gradient else None)
    if not needs_gradient:
        return run.planned(call, key, checked).run(call, checked.scale)
    plan = GradientPlan(_of_forward(call, checked), call.q.shape[-1] ** -0.5, checked.asked)
    if key is not None and (call.where.has_gradient_at_all_lengths(checked.mask) or has_pair(call, checked.mask)):
        run.plans.keep(key, plan)
    return plan.run(call, checked.scale)


@torch.no_grad()
def _of_forward(call: Call, checked: Checked) -> Plan:
    """Returns the plan of a call's output and LSE, which the backward reads."""
    call = call._replace(return_lse=True)
    key = key_of(call)
    plan = run.plans.get(key)
    if plan is not None and plan.serves(call):
        return plan
    return run.planned(call, key, checked._replace(asked=checked.asked.but(lse=True)))


def _find_pair(call: Call, mask: Mask | None) -> None:
    """Finds a call's pair of schedules and, where they are to compute gradients under a mask, their kernels."""
    texts = pair.texts_of(call.backward)
    found = pair.pair_of(texts)
    if mask is not None:
        problem, strided = pair.of_call(call, mask)
        pair.launched(found, problem, strided)
        pair.kernels(texts, problem, strided, checks.checked_card(call.q.device).arch)


def _with_pythons_numbers(call: Call, traced: bool) -> Call | None:
    """Returns the call with Python's own numbers for other libraries' scalars; None for a call without any."""
    values, where = tuple(map(plain, call.values)), call.where.with_lengths(plain if traced else length)
    values = call.values if all(map(operator.is_, values, call.values)) else values
    ours = Call(*call[:3], where, values, *call[5:7], *map(plain, call[7:]))
    return None if all(map(operator.is_, ours, call)) else ours
