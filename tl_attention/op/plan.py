"""A plan: what the first call of a kind leaves for the later ones, which then need no checks.

Its key is everything that checks, schedule, kernel and strides depend on, but for the scale and for addresses, which are
looked at in every call. A call has no key if anything in it is more than plain tensors, numbers and names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tl_attention.files.named import resolve
from tl_attention.op.in_memory import ALIGNMENT, BHSD, extent
from tl_attention.problem.window import OPEN
from tl_attention.schedule.schedule import Schedule

# Of kinds of calls: a server sees many lengths.
MOST_KEPT = 4096
# What a call has that does not say: equal to others of its value, and found without a look at its sides.
ANY_KEY = (OPEN, OPEN)
Key = tuple[object, ...]
# Sizes and strides.
Place = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How calls of one key are launched.

    `output` and `lse` are made anew, in the caller's layout. `views` are q, k, v and the output as the kernel takes them,
    None for one that it takes as it is. `spans` are their bytes, from the first to the last.
    """

    launch: Callable[..., None]
    schedule: Schedule
    device: torch.device
    head_dim: int
    softcap: float | None
    output: Place
    lse: Place | None
    views: tuple[Place | None, ...] | None
    spans: tuple[int, ...]

    @classmethod
    def of(
        cls,
        launch: Callable[..., None],
        schedule: Schedule,
        given: Mapping[str, Tensor],
        taken: Mapping[str, Tensor],
        *,
        softcap: float | None,
        result: Tensor,
        lse: Tensor | None,
        layout: str,
    ) -> Plan:
        """That of a call: q, k, v and out (batch, heads, seq, head_dim) as given, and as its kernel took them."""
        same = [layout == BHSD and taken[name].stride() == tensor.stride() for name, tensor in given.items()]
        views = tuple(None if as_given else _place(taken[name]) for name, as_given in zip(given, same))
        spans = []
        for tensor in given.values():
            first, end = extent(tensor)
            spans.append(end - first)
        q = given["q"]
        return cls(
            *(launch, schedule, q.device, q.shape[3], softcap, _place(result), None if lse is None else _place(lse)),
            *(None if all(same) else views, tuple(spans)),
        )

    def serves(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, schedule: Schedule | str | Path | None) -> bool:
        """Whether it is right for a call of its key, by addresses and the schedule's file: if not, the call is checked."""
        starts = q.data_ptr(), k.data_ptr(), v.data_ptr()
        first = starts[0] | starts[1] | starts[2]
        if out is not None:
            start = out.data_ptr()
            first |= start
            end = start + self.spans[3]
            if any(start < other + span and other < end for other, span in zip(starts, self.spans)):
                return False
        if first % ALIGNMENT:
            return False
        return schedule is None or isinstance(schedule, Schedule) or resolve(schedule).schedule is self.schedule

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, out: Tensor | None, scale: float
    ) -> Tensor | tuple[Tensor, Tensor]:
        """What the call returns."""
        result = q.new_empty_strided(*self.output) if out is None else out
        output = result
        if self.views is not None:
            of_q, of_k, of_v, of_output = self.views
            q = q if of_q is None else q.as_strided(*of_q)
            k = k if of_k is None else k.as_strided(*of_k)
            v = v if of_v is None else v.as_strided(*of_v)
            output = output if of_output is None else output.as_strided(*of_output)
        lse = None if self.lse is None else q.new_empty_strided(*self.lse, dtype=torch.float32)
        launch(self.launch, self.device, q, k, v, output, scale, lse, self.softcap, sinks)
        return result if lse is None else (result, lse)


def launch(
    kernel: Callable[..., None],
    device: torch.device,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    scale: float,
    *optional: Tensor | float | None,
) -> None:
    """Launch a kernel on the current stream of a device: `optional` are LSE, softcap and sinks, None for none."""
    given = [value for value in optional if value is not None]
    # Launching makes it the thread's current device, and to put another one back costs more than to look.
    if torch.cuda.current_device() == device.index:
        kernel(q, k, v, output, scale, *given)
    else:
        with torch.cuda.device(device):
            kernel(q, k, v, output, scale, *given)


def _place(tensor: Tensor) -> Place:
    return tuple(tensor.shape), tensor.stride()


# --- the plans of this process -------------------------------------------------------------------------------------

_kept: dict[Key, Plan] = {}


def kept(key: Key | None) -> Plan | None:
    """The plan that a call of this key left."""
    return None if key is None else _kept.get(key)


def keep(key: Key, plan: Plan) -> None:
    """Leave a plan for later calls of its key."""
    if len(_kept) >= MOST_KEPT:
        _kept.clear()
    _kept[key] = plan


def key_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    out: Tensor | None,
    schedule: Schedule | str | Path | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    layout: str,
    return_lse: bool,
    specialize: bool,
) -> Key | None:
    """The key of a call; None for one that is always checked.

    Values that are equal are of one type here: 1 is no flag, 1.0 no side of a window.
    """
    if not (type(q) is type(k) is type(v) is Tensor and type(causal) is type(return_lse) is type(specialize) is bool):
        return None
    if window_size is not ANY_KEY and not (type(window_size) is tuple and all(type(side) is int for side in window_size)):
        return None
    if not (type(softcap) is float or type(softcap) is int) or type(layout) is not str:
        return None
    if schedule is not None and not isinstance(schedule, (str, Path, Schedule)):
        return None
    of_sinks = of_out = strides = None
    if sinks is not None:
        if type(sinks) is not Tensor:
            return None
        of_sinks = sinks.shape, sinks.dtype, sinks.device, sinks.is_contiguous()
    if out is not None:
        if type(out) is not Tensor or (out.requires_grad and torch.is_grad_enabled()):
            return None
        of_out = out.shape, out.stride(), out.dtype, out.device
    # Contiguous tensors may differ in strides that say nothing.
    if out is not None or not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        strides = q.stride(), k.stride(), v.stride()
    return (
        *(q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, strides),
        *(of_sinks, of_out, schedule, causal, window_size, softcap, layout, return_lse, specialize),
    )
