"""A call runs by the plan that an earlier one like it has left, or is checked, and leaves one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from tl_attention.op import checks
from tl_attention.op.call import Call, Result
from tl_attention.op.checks import Checked, checked_scale
from tl_attention.op.plan import Key, Plan, Plans, key_of

# The plans that earlier calls of this process have left, by call key.
plans: Plans[Any] = Plans()
# What runs the first call of a key.
First = Callable[[Call, Key | None], Result]


def run(call: Call, first: First) -> Result:
    """Runs a call by the plan of its key, or as `first` does where none serves it."""
    key = None
    if not is_dynamo_compiling():
        try:
            key = key_of(call)
        except (RuntimeError, AttributeError, TypeError, ValueError):  # No plain tensors: refused below.
            key = None
        plan = plans.get(key)
        if plan is not None:
            scale = plan.scale if call.scale is None else checked_scale(call.scale, plan.asked)
            if plan.serves(call):
                return plan.run(call, scale)
    return first(call.where.by_rows(call), key)


def planned(call: Call, key: Key | None, found: Checked) -> Plan:
    """Returns the plan of a call whose arguments are right, and keeps it for later calls of its key."""
    plan: Plan = call.where.plan(call, found)
    if key is not None:
        plans.keep(key, plan)
    return plan


@torch.no_grad()
def forward(call: Call) -> Result:
    """Runs a call without gradients."""
    return run(call, _checked)


def _checked(call: Call, key: Key | None) -> Result:
    checked = checks.checked(call)
    return planned(call, key, checked).run(call, checked.scale)
