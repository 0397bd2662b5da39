"""The kernel of a call: its schedule, compiled once in a process."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import torch

from tl_attention.build.compile import CompiledKernel, compile_kernel
from tl_attention.errors import InputError
from tl_attention.files.defaults import default_schedule
from tl_attention.files.named import resolve
from tl_attention.hardware.card import Card
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

_compile_lock = threading.Lock()


def kernel_of(schedule: Schedule, variant: Variant) -> CompiledKernel:
    """The schedule's kernel for a variant. Raises ScheduleRefused."""
    # TileLang's tracer keeps state in globals, so two threads may not compile at once.
    with _compile_lock:
        return _compiled(schedule, variant)


@functools.cache
def _compiled(schedule: Schedule, variant: Variant) -> CompiledKernel:
    return compile_kernel(schedule, variant)


@functools.cache
def sms_of(device: torch.device) -> int:
    """How many SMs a CUDA device has: a MIG slice those of its own."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def schedule_of(schedule: Schedule | str | Path | None, shape: AttentionShape, card: Card) -> Schedule:
    """The schedule that a caller means; by default the one that files/defaults.yaml has for the problem on the card."""
    if isinstance(schedule, Schedule):
        return schedule
    if schedule is None:
        schedule = default_schedule(shape, card.arch)
    if not isinstance(schedule, (str, Path)):
        found = type(schedule).__name__
        raise InputError(f"attention: schedule is {found}, expected a name, a file, a label or a Schedule")
    return resolve(schedule).schedule
