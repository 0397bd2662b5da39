"""A plan is what the first call of a kind leaves for later calls, which are launched without its checks.

A plan's key is everything that checks, schedule, kernel and strides depend on, but for the scale and for addresses,
which every call checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tl_attention.op.call import NO_WINDOW, OFF, Call, Result, Values
from tl_attention.op.checks import Checked
from tl_attention.op.in_memory import ALIGNMENT, share_memory
from tl_attention.problem.features import FeatureValues
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

# At most so many kinds of calls keep a plan: a server sees many lengths.
MOST_KEPT = 4096
Key = tuple[object, ...]
Kept = TypeVar("Kept")
# The kernel of a call, None where it needs none, with its arguments.
LaidOut = tuple[Callable[..., None] | None, tuple[Any, ...]]
# A schedule is named by one of these types.
NAMED = (str, Path, Schedule)
# Values of features that are no tensor are of these types.
PLAIN = {float, int, type(None)}
# torch.cuda's own function asks first whether CUDA has begun, which it has where tensors are on a GPU.
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@dataclass(frozen=True, slots=True)
class Plan:
    """A Plan launches calls that are like an earlier one, without checking them again.

    Subclasses lay out the tensors of a batch, and packed ones.
    """

    device: int | None
    scale: float  # of a call that gives none
    asked: FeatureValues  # features, which a given scale has to go with
    has_lse: bool  # whether the LSE is a result
    like_q: bool  # whether an output that is made has the sizes and strides of q
    schedule: Schedule | None  # None if no kernel is needed

    def serves(self, call: Call) -> bool:
        """Says whether this plan may launch a call of its key.

        Tensors must be aligned, no input may lie under `out`, and the schedule's file must be as it was.
        """
        q, k, v, out, schedule = call.q, call.k, call.v, call.out, call.schedule
        together = q.data_ptr() | k.data_ptr() | v.data_ptr()
        if out is not None:
            together |= out.data_ptr()
            inputs = (q, k, v, *call.where.tensors.values(), *call.values)
            if any(isinstance(x, Tensor) and share_memory(out, x) for x in inputs):
                return False
        if together % ALIGNMENT:
            return False
        return schedule is None or isinstance(schedule, Schedule) or resolve(schedule).schedule is self.schedule

    def run(self, call: Call, scale: float) -> Result:
        """Launches the kernel on a call's tensors. Returns the output, or (output, LSE) if the plan has an LSE."""
        result, lse = call.results(self.has_lse, self.like_q)
        kernel, arguments = self.laid_out(call, scale, result, lse)
        if kernel is not None:
            # A launch makes the device the thread's current one. To look costs less than to put the same one back.
            if current_device() == self.device:
                kernel(*arguments)
            else:
                with torch.cuda.device(self.device):
                    kernel(*arguments)
        return result if lse is None else (result, lse)

    def laid_out(self, call: Call, scale: float, result: Tensor, lse: Tensor | None) -> LaidOut:
        """Returns the kernel that writes a call's results, with its arguments, after writing what needs no kernel."""
        raise NotImplementedError


def shared_fields(call: Call, found: Checked) -> tuple[int | None, float, FeatureValues, bool, bool]:
    """Returns the values of a Plan's own fields for a call, which do not depend on where its tensors lie."""
    q, like_q = call.q, call.q.is_contiguous() and call.q.shape[-1] == call.v.shape[-1]
    return q.device.index, q.shape[-1] ** -0.5, found.asked, call.return_lse, like_q


class Plans(dict[Key | None, Kept]):
    """Plans map a call's key to the plan that launches such calls. A call without a key, None, finds none."""

    def keep(self, key: Key, plan: Kept) -> None:
        """Adds a plan for later calls of its key. If 4096 plans are kept already, forgets them all first."""
        if len(self) >= MOST_KEPT:
            self.clear()
        self[key] = plan


def key_of(call: Call) -> Key | None:
    """Returns the tuple of all that a call's plan depends on, its key; None where a type allows no plan.

    No plan may be kept where an argument is no plain tensor, number, name or Schedule. Values that are equal, and
    right, mean the same: so 1 is not taken for a flag, nor 1.0 for a side of a window.
    """
    (
        q, k, v, where, values, out, schedule, _,
        causal, window_size, return_lse, invariant, specialize, zero_unused, check, in_parts, backward,
    ) = call  # fmt: skip
    dtype, device = q.dtype, q.device
    if not (
        type(q) is type(k) is type(v) is Tensor
        # What differs here is refused.
        and (k.dtype is v.dtype is dtype and k.device == v.device == device)
        and (type(causal) is type(return_lse) is type(specialize) is type(zero_unused) is bool and check is False)
        and (invariant is None or type(invariant) is bool)
        and (window_size is NO_WINDOW or (type(window_size) is tuple and all(type(n) is int for n in window_size)))
        and (schedule is None or isinstance(schedule, NAMED))
        and (backward is None or (type(backward) is tuple and all(isinstance(x, NAMED) for x in backward)))
    ):
        return None
    # This asks what operator.requires_gradient asks, without its loop: every eager call comes by here.
    graded = torch.is_grad_enabled()
    needs_gradient = graded and (q.requires_grad or k.requires_grad or v.requires_grad)
    of_out = strides = None
    if values is not OFF and not PLAIN.issuperset(map(type, values)):
        values = _described(values, graded)
    if out is not None:
        if type(out) is not Tensor or (graded and out.requires_grad):
            return None
        of_out = out.stride(), out.dtype, out.device
    # Contiguous tensors may differ in strides of dimensions of length 1, which say nothing.
    if out is not None or not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        strides = q.stride(), k.stride(), v.stride()
    sizes = where.sizes(q, k, v, out)
    if not (sizes and values):
        return None
    of_tensors = sizes, strides, dtype, device, of_out, needs_gradient
    return of_tensors, schedule, causal, window_size, return_lse, invariant, specialize, backward, in_parts, values


def _described(values: Values, graded: bool) -> Values:
    """Returns the values with tensors as what of them counts in a key; () if one cannot be in a key."""
    described: list[object] = []
    for value in values:
        if type(value) in PLAIN:
            described.append(value)
        elif type(value) is Tensor:
            needs = graded and value.requires_grad
            described.append((value.shape, value.dtype, value.device, value.is_contiguous(), needs))
        else:
            return ()
    return tuple(described)
