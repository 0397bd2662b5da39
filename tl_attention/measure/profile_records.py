"""The record of profiled kernels: a line for each, with its counters under ncu's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tl_attention.measure.counters import SECTOR_BYTES
from tl_attention.measure.records import Measured, SizesKnown, parse_line, read_lines, shape_of
from tl_attention.measure.tiling import tiling_of
from tl_attention.problem import traffic
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.traffic import Tiling
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule


@dataclass(frozen=True)
class ProfileRow(Measured):
    """One kernel on one problem. `metrics` are in base units: ns, bytes, sectors, cycles, percent.

    `kernel` is its name in the generated code. Of a peer that launches several kernels it is the one that took longest, and
    the metrics are that one's; `launches` says how many there were. Without metrics it is only what theory says.
    """

    name: str
    label: str
    sizes: SizesKnown
    problem: dict[str, Any]
    kernel: str = ""
    launches: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def shape(self) -> AttentionShape:
        """The problem. Raises InputError or TypeError for one that is none."""
        return shape_of(self.problem)

    @cached_property
    def tiling(self) -> Tiling | None:
        """How its kernel cuts the problem; None of a peer."""
        return None if self.sizes == "peer" else tiling_of(Planned(Schedule.from_label(self.label)))

    def bytes_of(self, metric: str) -> float | None:
        """Bytes that a counter of sectors, or bytes, has; None of one that was not counted."""
        value = self.metrics.get(metric)
        return value if value is None or "sectors" not in metric else value * SECTOR_BYTES

    @property
    def read_from_l2(self) -> int | None:
        """What theory has the SMs read from L2, in bytes; None of a peer."""
        return None if self.tiling is None else traffic.read_from_l2(self.shape, self.tiling)

    @property
    def arriving_in_sms(self) -> int | None:
        """What theory has arrive in the SMs, in bytes; None of a peer."""
        return None if self.tiling is None else traffic.arriving_in_sms(self.shape, self.tiling)


def read_profiles(path: Path) -> list[ProfileRow]:
    """The rows of a record, blank lines skipped. Raises InputError with the line that is none."""
    return [parse_line(ProfileRow, line, where) for where, line in read_lines(path)]
