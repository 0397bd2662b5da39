"""The record of a benchmark of cells: a line for each cell, and what it says of the cell's bars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tl_attention.errors import InputError
from tl_attention.measure.cell import OURS
from tl_attention.measure.records import Comparison, Measured, Status
from tl_attention.measure.timing import tflops

# Of the second entry of the first peer.
AGAIN = " again"
# How far below its bar a speed may be, where equal entries differ as much.
MOST_REPEATABILITY = 0.005
Verdict = Literal["met", "within repeatability", "missed", "not measured"]


@dataclass(frozen=True)
class Timed:
    """One entry of a cell. `rounds_ms` are milliseconds of one call, the mean of a round's `calls`, for each round.

    `flops` are those of its own problem, masked pairs left out. `error` is its largest error as a part of the budget.
    """

    name: str
    what: str
    flops: int
    status: Status = "ok"
    reason: str = ""
    fingerprint: str | None = None
    error: float | None = None
    calls: int = 0
    rounds_ms: tuple[float, ...] = ()
    sm_clock_mhz: int | None = None

    @property
    def median_ms(self) -> float | None:
        """Of the rounds."""
        return statistics.median(self.rounds_ms) if self.rounds_ms else None

    @property
    def tflops(self) -> float | None:
        """Of the median."""
        return None if self.median_ms is None else tflops(self.flops, self.median_ms)

    @property
    def n(self) -> int:
        """Timed calls."""
        return self.calls * len(self.rounds_ms)


@dataclass(frozen=True)
class CellRow(Measured):
    """One cell: its entries were sampled in turn in one process, so their rounds are pairs.

    `peers` are the entries that ours is compared with, and the least speeds that are asked for, ours as a part of
    theirs; `mean` is the bar of the geometric mean of the group's cells against the first. `visited` are the pairs that
    our kernel computes over those that are visible.
    """

    cell: str
    group: str
    problem: dict[str, Any]
    entries: tuple[Timed, ...]
    peers: dict[str, float | None]
    mean: float | None = None
    visited: float | None = None

    def check(self) -> None:
        super().check()
        if self.entry(OURS) is None:
            raise InputError(f"entries: expected one of the name {OURS!r}")
        for entry in self.entries:
            # Speeds are ratios of these.
            if min((entry.flops, *entry.rounds_ms)) <= 0:
                raise InputError(f"entries: {entry.name[:40]}: expected flops and rounds_ms above 0")

    @property
    def of(self) -> str:
        """The cell."""
        return self.cell

    @property
    def ours(self) -> Timed:
        """Our entry."""
        return next(entry for entry in self.entries if entry.name == OURS)

    @property
    def reference(self) -> str | None:
        """The peer that stands there twice."""
        return next((e.name.removesuffix(AGAIN) for e in self.entries if e.name.endswith(AGAIN)), None)

    def entry(self, name: str) -> Timed | None:
        """The entry of that name."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def speed(self, of: str, against: str) -> Comparison | None:
        """One entry's rate as a part of another's, FLOP of each counted, paired by rounds; None of what was not timed.

        It is the other's time as a part of this one's: of one problem, for as much work as the other's has else.
        """
        one, other = self.entry(of), self.entry(against)
        if one is None or other is None or not one.rounds_ms or not other.rounds_ms:
            return None
        work = one.flops / other.flops
        return Comparison.of(one.what, one.fingerprint, [work * ms for ms in other.rounds_ms], one.rounds_ms)

    @property
    def repeatability(self) -> float | None:
        """How far the same entered twice is from 1."""
        if self.reference is None:
            return None
        again = self.speed(self.reference + AGAIN, self.reference)
        return None if again is None else abs(again.ratio - 1)

    @property
    def bars(self) -> dict[str, float]:
        """Of the peers that have one."""
        return {peer: bar for peer, bar in self.peers.items() if bar is not None}

    def verdicts(self) -> Mapping[str, Verdict]:
        """Of each peer that has a bar."""
        return {peer: self._verdict(self.speed(OURS, peer), bar) for peer, bar in self.bars.items()}

    def _verdict(self, speed: Comparison | None, bar: float) -> Verdict:
        if speed is None:
            return "not measured"
        if speed.ratio >= bar:
            return "met"
        return "within repeatability" if speed.ratio >= bar - self.allowance else "missed"

    @property
    def allowance(self) -> float:
        """How far below a bar counts as on it."""
        return min(self.repeatability or 0.0, MOST_REPEATABILITY)


def is_cell(values: Mapping[str, Any]) -> bool:
    """Whether a line of results is one of a cell."""
    return "cell" in values
