"""A plan is what the first call of a kind leaves for later calls, which are launched without its checks.

A plan's key is everything that checks, schedule, kernel and strides depend on, but for the scale and for addresses,
which every call checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tl_attention.op.few import results_of_parts
from tl_attention.op.in_memory import ALIGNMENT, BHSD, extent, other_way
from tl_attention.problem.features import INPUTS, Asked, Value
from tl_attention.problem.mask import OPEN
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

# At most so many kinds of calls keep a plan: a server sees many lengths.
MOST_KEPT = 4096
# The window of a call that names none, known by its identity.
NO_WINDOW = (OPEN, OPEN)
Key = tuple[object, ...]
Kept = TypeVar("Kept")
# A call's values for INPUTS, in the order of INPUTS. Values that are no tensor are of a PLAIN type.
Values = tuple[Any, ...]
PLAIN = {float, int, type(None)}
# A kernel takes for a feature a tensor, by its place among these values, or else a number.
Taken = tuple[int | None, Value | None]
# Sizes and strides of a tensor.
Place = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A Plan holds the kernel, sizes and strides by which calls like an earlier one are launched without new checks.

    `output` and `lse` are the sizes and strides of the results, in the caller's layout; `asked` are the features.
    `views` are q, k, v and the output as the kernel takes them, None where the kernel takes them as they are.
    `features` are what the kernel takes for features besides the LSE: a number, or the place of a tensor among the
    call's values, and None for the other. `lse_view` is the LSE as the kernel takes it, `parts` how many parts of the keys
    it computes, 0 where it computes all at once. `spans` are the bytes, from the first to the last, of q, k, v, the
    features' tensors and the output.
    """

    kernel: Callable[..., None]
    schedule: Schedule
    device: int | None
    head_dim: int
    asked: Asked
    output: Place
    lse: Place | None
    lse_view: tuple[int, ...]
    views: tuple[Place, ...] | None
    spans: tuple[int, ...]
    features: tuple[Taken, ...]
    parts: int = 0

    @classmethod
    def of(
        cls,
        kernel: Callable[..., None],
        schedule: Schedule,
        given: Mapping[str, Tensor],
        taken: Mapping[str, Tensor],
        asked: Asked,
        per_head: Mapping[str, Tensor],
        numbers: Mapping[str, int],
        layout: str,
        parts: int = 0,
    ) -> Plan:
        """Makes the plan of a call from its kernel, schedule, tensors, features, other numbers and layout.

        `given` and `taken` are q, k, v and out (batch, heads, seq, head_dim), as given and as the kernel takes them.
        """
        as_given = layout == BHSD and all(_place(taken[name]) == _place(tensor) for name, tensor in given.items())
        *read, output = given.values()
        q, spans = given["q"], (end - first for first, end in map(extent, [*read, *per_head.values(), output]))
        batch, heads, rows, head_dim = q.shape
        return cls(
            *(kernel, schedule, q.device.index, head_dim, asked, _place(other_way(output, layout))),
            lse=((batch, heads, rows), (heads * rows, rows, 1)) if "lse" in asked else None,
            lse_view=tuple(taken["q"].shape[:3]),
            views=None if as_given else tuple(map(_place, taken.values())),
            spans=tuple(spans),
            features=features_taken(asked, numbers),
            parts=parts,
        )

    def serves(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        values: Values,
        out: Tensor | None,
        schedule: Schedule | str | Path | None,
    ) -> bool:
        """Says whether this plan may launch a call (tensors aligned, no input under `out`, schedule's file unchanged).

        The call has the plan's key.
        """
        starts = q.data_ptr(), k.data_ptr(), v.data_ptr()
        together = starts[0] | starts[1] | starts[2]
        if out is not None:
            start = out.data_ptr()
            together |= start
            end = start + self.spans[-1]
            read = list(starts)
            for place, _ in self.features:
                if place is not None:
                    read.append(values[place].data_ptr())
            if any(start < other + span and other < end for other, span in zip(read, self.spans)):
                return False
        if together % ALIGNMENT:
            return False
        return schedule is None or isinstance(schedule, Schedule) or resolve(schedule).schedule is self.schedule

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, values: Values, out: Tensor | None, scale: float
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Launches the kernel on a call's tensors. Returns the output, or (output, LSE) if the plan has an LSE."""
        result = output = q.new_empty_strided(*self.output) if out is None else out
        lse = None if self.lse is None else q.new_empty_strided(*self.lse, dtype=torch.float32)
        if self.views is not None:
            of_q, of_k, of_v, of_output = self.views
            q, k, v = q.as_strided(*of_q), k.as_strided(*of_k), v.as_strided(*of_v)
            output = result.as_strided(*of_output)
        of_rows = lse if lse is None or self.views is None else lse.view(self.lse_view)
        written: list[Any] = [output] if of_rows is None else [output, of_rows]
        merged: list[Any] = []
        if self.parts:
            # The kernel writes each part's results, and then those of all keys.
            if of_rows is None:
                written.append(q.new_empty(output.shape[:3], dtype=torch.float32))
            merged, written = written, [*results_of_parts(output, self.parts)]
        taken = [q, k, v, written[0], scale, *written[1:]]
        for place, value in self.features:
            taken.append(value if place is None else values[place])
        taken += merged
        # A launch makes the device the thread's current one. To look costs less than to put the same one back.
        if torch.cuda.current_device() == self.device:
            self.kernel(*taken)
        else:
            with torch.cuda.device(self.device):
                self.kernel(*taken)
        return result if lse is None else (result, lse)


def features_taken(asked: Asked, numbers: Mapping[str, int]) -> tuple[Taken, ...]:
    """Returns what a kernel takes for the asked features of INPUTS, in their order, and then these numbers."""
    there = ((place, feature) for place, feature in enumerate(INPUTS) if feature.word in asked)
    of_features = ((None, asked[f.word]) if f.is_number else (place, None) for place, f in there)
    return (*of_features, *((None, number) for number in numbers.values()))


def _place(tensor: Tensor) -> Place:
    return tuple(tensor.shape), tensor.stride()


class Plans(dict[Key | None, Kept]):
    """Plans map a call's key to the plan that launches such calls. A call without a key, None, finds none."""

    def keep(self, key: Key, plan: Kept) -> None:
        """Adds a plan for later calls of its key. If 4096 plans are kept already, forgets them all first."""
        if len(self) >= MOST_KEPT:
            self.clear()
        self[key] = plan


def described(values: Values, graded: bool) -> Values:
    """Returns the values, each tensor as (shape, dtype, device, contiguous, whether it needs a gradient).

    Returns () if one of them cannot be in a key.
    """
    found: list[object] = []
    for value in values:
        if type(value) in PLAIN:
            found.append(value)
        elif type(value) is Tensor:
            needs = graded and value.requires_grad
            found.append((value.shape, value.dtype, value.device, value.is_contiguous(), needs))
        else:
            return ()
    return tuple(found)


def key_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    values: Values,
    out: Tensor | None,
    schedule: Schedule | str | Path | None,
    options: tuple[bool, tuple[int, int], str, bool, bool, bool | None],
) -> Key | None:
    """Returns the tuple of all that a call's plan depends on, its key; None where a type allows no plan.

    No plan may be kept where an argument is no plain tensor, number, name or Schedule.

    `values` are the call's for INPUTS, `options` are causal, window_size, layout, return_lse, specialize and invariant. Values
    that are equal, and right, mean the same: so 1 is not taken for a flag, nor 1.0 for a side of a window.
    """
    causal, window_size, layout, *flags = options
    if not (type(q) is type(k) is type(v) is Tensor and type(causal) is bool):
        return None
    if not all(flag is None or type(flag) is bool for flag in flags):
        return None
    # This asks what operator.requires_gradient asks, without its loop: every eager call comes by here.
    graded = torch.is_grad_enabled()
    needs_gradient = graded and (q.requires_grad or k.requires_grad or v.requires_grad)
    if window_size is not NO_WINDOW and not (type(window_size) is tuple and all(type(n) is int for n in window_size)):
        return None
    if type(layout) is not str:
        return None
    if schedule is not None and not isinstance(schedule, (str, Path, Schedule)):
        return None
    features = values
    for value in values:
        if type(value) not in PLAIN:
            features = described(values, graded)
            if not features:
                return None
            break
    of_out = strides = None
    if out is not None:
        if type(out) is not Tensor or (graded and out.requires_grad):
            return None
        of_out = out.shape, out.stride(), out.dtype, out.device
    # Contiguous tensors may differ in strides of dimensions of length 1, which say nothing.
    if out is not None or not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        strides = q.stride(), k.stride(), v.stride()
    return (
        *(q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, strides),
        *(of_out, schedule, needs_gradient, *options, *features),
    )
