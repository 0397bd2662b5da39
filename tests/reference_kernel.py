"""A machine without a GPU on which `attention` runs: its kernels are the fp64 reference, all else is as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tl_attention.op import arguments
from tl_attention.oracle.reference import attention_fp64, lse_fp64
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

# What runs for a schedule and a variant, called as a compiled kernel is.
Kernels = Callable[[Schedule, Variant], Callable[..., None]]


def reference_kernel(schedule: Schedule, variant: Variant) -> Callable[..., None]:
    """Attention of the variant in fp64, on tensors as the kernel would be handed them."""

    def run(Q: Any, K: Any, V: Any, Output: Any, softmax_scale: float, softcap: float = 0.0, **others: Any) -> None:
        options = {"mask": variant.mask, "scale": softmax_scale, "softcap": softcap, "sinks": others.get("Sinks")}
        Output.copy_(attention_fp64(Q, K, V, **options))
        if "LSE" in others:
            others["LSE"].copy_(lse_fp64(Q, K, **options))

    return run


def on_the_cpu(monkeypatch: pytest.MonkeyPatch, kernel_of: Kernels = reference_kernel) -> None:
    """Have `attention` take CPU tensors for a Hopper GPU's, and run these kernels."""
    from importlib import import_module

    monkeypatch.setattr(arguments, "check_device", lambda device: None)
    # The module, whose name the package gives to the function.
    monkeypatch.setattr(import_module("tl_attention.op.attention"), "kernel_of", kernel_of)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
