"""Counts the kernels of forward passes that attention() launches, whichever they are."""

from types import SimpleNamespace
from typing import Any

import pytest
from on_cpu import forget_plans

from tl_attention.op import compiled
from tl_attention.problem.variant import Variant
from tl_attention.schedule.loop.loops import FORWARD
from tl_attention.schedule.schedule import Schedule


def count_launches(monkeypatch: pytest.MonkeyPatch) -> list[Variant]:
    """Returns a list to which the variant of every forward pass's kernel is added that is launched from now on."""
    found: list[Variant] = []
    kernel_of = compiled.kernel_of

    def counted(schedule: Schedule, variant: Variant) -> Any:
        kernel = kernel_of(schedule, variant)
        if variant.loop != FORWARD:
            return kernel

        def launch(*given: Any) -> None:
            found.append(variant)
            kernel.launch(*given)

        return SimpleNamespace(launch=launch)

    forget_plans(monkeypatch)
    monkeypatch.setattr(compiled, "kernel_of", counted)
    return found
