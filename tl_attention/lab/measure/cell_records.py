"""The record of a benchmark has a line for each cell, which says whether the cell meets its bars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from tl_attention.errors import InputError
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.records import Measured, Positive, RoundRatios, Status
from tl_attention.lab.measure.timing import tflops

# The end of the name of the first peer's second entry.
AGAIN = " again"
# How far below its bar a speed may be at most, where equal entries differ as much.
MOST_REPEATABILITY = 0.005
Verdict = Literal["met", "within repeatability", "missed", "not measured"]


@dataclass(frozen=True)
class Timed:
    """A `Timed` records the status, error and times of one entry of a cell."""

    name: str
    what: str
    flops: Annotated[int, Field(gt=0)]  # of the entry's own problem, masked pairs left out
    status: Status = "ok"
    reason: str = ""
    fingerprint: str | None = None
    error: float | None = None  # the largest, as a part of the budget
    calls: int = 0  # of a round
    rounds_ms: tuple[Positive, ...] = ()  # of one call, for each round the mean of its calls
    sm_clock_mhz: int | None = None

    @property
    def median_ms(self) -> float | None:
        """Returns the median of the rounds' times in milliseconds, None where there are no rounds."""
        return statistics.median(self.rounds_ms) if self.rounds_ms else None

    @property
    def tflops(self) -> float | None:
        """Returns the rate at the median time in TFLOPS, None where there is no time."""
        return None if self.median_ms is None else tflops(self.flops, self.median_ms)

    @property
    def n(self) -> int:
        """Returns the number of timed calls."""
        return self.calls * len(self.rounds_ms)


@dataclass(frozen=True)
class CellRow(Measured):
    """A `CellRow` records the entries of one cell, ours and its peers', with their times and the bars asked for."""

    cell: str
    group: str
    problem: dict[str, Any]
    entries: tuple[Timed, ...]  # sampled in turn in one process, so their rounds are pairs
    # The lowest speeds that are asked for, our rate as a part of the peer's, of the entries that ours is compared with.
    peers: dict[str, float | None]
    mean: float | None = None  # the bar of the geometric mean of the group's cells against the first peer
    visited: float | None = None  # how many pairs our kernel computes for each visible pair

    def check(self) -> None:
        if self.entry(OURS) is None:
            raise InputError(f"entries: expected one of the name {OURS!r}")

    @property
    def of(self) -> str:
        """Returns the cell's name, by which errors name the line."""
        return self.cell

    @property
    def ours(self) -> Timed:
        """Returns the entry named `ours`, that of our own kernel."""
        return next(entry for entry in self.entries if entry.name == OURS)

    @property
    def reference(self) -> str | None:
        """Returns the name of the peer that was entered twice, None where no peer was."""
        return next((e.name.removesuffix(AGAIN) for e in self.entries if e.name.endswith(AGAIN)), None)

    def entry(self, name: str) -> Timed | None:
        """Returns the entry of that name, None where there is none."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def speed(self, of: str, against: str) -> RoundRatios | None:
        """Returns one entry's rate as a part of another's, paired by rounds; None where one of the two was not timed.

        A rate counts the FLOP of the entry's own problem. If both entries have one problem, the ratio is the other's
        time as a part of this entry's. If not, the other's time is scaled to as much work as this entry has.
        """
        one, other = self.entry(of), self.entry(against)
        if one is None or other is None or not one.rounds_ms or not other.rounds_ms:
            return None
        work = one.flops / other.flops
        return RoundRatios.of(one.what, one.fingerprint, [work * ms for ms in other.rounds_ms], one.rounds_ms)

    @property
    def repeatability(self) -> float | None:
        """Returns how far the ratio of the two entries of one peer is from 1, None where no peer was timed twice."""
        if self.reference is None:
            return None
        again = self.speed(self.reference + AGAIN, self.reference)
        return None if again is None else abs(again.ratio - 1)

    @property
    def bars(self) -> dict[str, float]:
        """Returns the lowest speed that is asked for against each peer, by peer; peers without one are left out."""
        return {peer: bar for peer, bar in self.peers.items() if bar is not None}

    def verdicts(self) -> Mapping[str, Verdict]:
        """Returns, for each peer with a bar, the verdict on our speed against it, such as met, missed or not measured.

        A miss by no more than `allowance` is "within repeatability".
        """
        return {peer: self._verdict(self.speed(OURS, peer), bar) for peer, bar in self.bars.items()}

    def _verdict(self, speed: RoundRatios | None, bar: float) -> Verdict:
        if speed is None:
            return "not measured"
        if speed.ratio >= bar:
            return "met"
        return "within repeatability" if speed.ratio >= bar - self.allowance else "missed"

    @property
    def allowance(self) -> float:
        """Returns how far below a bar a speed may be without a miss, the repeatability up to MOST_REPEATABILITY."""
        return min(self.repeatability or 0.0, MOST_REPEATABILITY)


def is_cell(values: Mapping[str, Any]) -> bool:
    """Says whether the object of a line of results has the key `cell`, as the record of a cell has."""
    return "cell" in values
