"""A call's schedule, its kernel, and the GPU that runs it."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from pathlib import Path

import torch

from tl_attention.compiler.compile import CompiledKernel, compile_kernel, ships
from tl_attention.errors import InputError
from tl_attention.problem.card import Card
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import KEY_BOXES, Variant
from tl_attention.schedule.files.defaults import default_schedule
from tl_attention.schedule.files.named import resolve_forward
from tl_attention.schedule.schedule import Schedule

_compile_lock = threading.Lock()


def kernel_of(schedule: Schedule, variant: Variant) -> CompiledKernel:
    """Returns the compiled kernel of a schedule for a variant, compiled once in a process. Raises ScheduleRefused."""
    # TileLang's tracer keeps state in globals, so two threads may not compile at once.
    with _compile_lock:
        return _compiled(schedule, variant)


@functools.cache
def _compiled(schedule: Schedule, variant: Variant) -> CompiledKernel:
    return compile_kernel(schedule, variant)


def that_ships(schedule: Schedule, variant: Variant) -> Variant:
    """Returns the variant of a kernel that ships and serves its calls; the variant itself where none does.

    A kernel for tensors of any strides serves contiguous ones, one that writes the LSE those who do not ask for it, and
    one that loads a page in smaller boxes larger pages.
    """
    boxes = [variant.key_box, *(box for box in KEY_BOXES if box < variant.key_box and variant.key_box % box == 0)]
    wider = (
        replace(variant, strided=variant.strided or strided, optional=variant.optional | more, key_box=box)
        for box in boxes
        for more in (frozenset[str](), frozenset({"LSE"}))
        for strided in (False, True)
    )
    return next((one for one in wider if ships(schedule, one)), variant)


@functools.cache
def sms_of(device: torch.device) -> int:
    """Returns the number of SMs of a CUDA device. A MIG slice has its own number."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def schedule_of(
    schedule: Schedule | str | Path | None, shape: AttentionShape, card: Card, invariant: bool = False
) -> Schedule:
    """Returns the Schedule of a name, file, label or Schedule, or for None the default of the problem and card.

    Raises InputError for a value of another type.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if schedule is None:
        schedule = default_schedule(shape, card.arch, invariant)
    if not isinstance(schedule, (str, Path)):
        found = type(schedule).__name__
        raise InputError(f"attention: schedule is {found}, expected a name, a file, a label or a Schedule")
    return resolve_forward(schedule).schedule
