"""This module holds the input of the proof of generated code, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tl_attention.problem.features import Parameter
from tl_attention.problem.variant import Variant

if TYPE_CHECKING:
    from tl_attention.launch.plan import HostPlan


class Unsafe(Exception):
    """An Unsafe is raised where generated code does wrong, and says what; the proof turns it into a ScheduleRefused."""


@dataclass(frozen=True)
class GeneratedCode:
    """GeneratedCode is the CUDA, and the host's plan as JSON, that TileLang made of a schedule for a variant."""

    source: str
    host_plan: str
    variant: Variant
    parameters: tuple[Parameter, ...]

    @cached_property
    def plan(self) -> HostPlan:
        """Returns the HostPlan; raises InputError where it cannot be read."""
        # Late: a kernel that was proved before is loaded without the proof.
        from tl_attention.launch.plan import from_json

        return from_json(self.host_plan)


@dataclass(frozen=True)
class Verdict:
    """A Verdict is the proof's result for code that it accepts; code that is not accepted raises ScheduleRefused."""

    kinds: tuple[str, ...]  # what every line of the source is read as, "" outside the kernel's body
    unreached: tuple[int, ...]  # the numbers, from 0, of the lines that can never run
    digest: str  # of all events, coordinates and bytes
