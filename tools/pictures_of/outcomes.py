"""Predictions of the experiments, in words, as intervals of speed, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tl_attention.errors import InputError
from tl_attention.measure.records import Row, read_rows

# How far outside of its interval a speed may be, in both directions, and still be what was predicted: the noise.
NOISE = 0.01
# Of the speeds' last digit, in floating point.
ROUNDING = 1e-9
COLUMN = "prediction"
_AMOUNT = re.compile(r"(?P<least>[\d.]+)(?: to (?P<most>[\d.]+))? % (?P<way>slower|faster)\b")
_SAME = re.compile(r"no difference\b")
_AS = re.compile(r"as (?P<other>\w+)\b")


@dataclass(frozen=True)
class Interval:
    """Speeds as parts of that of the schedule that was changed: 0.98 to 0.99 is 1 to 2 % slower."""

    low: float
    high: float

    def holds(self, speed: float) -> bool:
        """Whether the speed is in it, or no further outside than noise."""
        return self.low - NOISE - ROUNDING <= speed <= self.high + NOISE + ROUNDING


@dataclass(frozen=True)
class Outcome:
    """One experiment: what was predicted in words, the interval that they mean, and the speed that was measured."""

    name: str
    words: str
    predicted: Interval
    speed: float

    @property
    def came_true(self) -> bool:
        """Whether the speed is what was predicted."""
        return self.predicted.holds(self.speed)


def outcomes(page: Path, record: Path, base: str) -> list[Outcome]:
    """Those of a page of experiments, the fastest first; speeds are of 10th percentiles in its record.

    Raises InputError for a prediction that cannot be read, and for an experiment that the record does not have.
    """
    words = predictions(page)
    times = {row.name: _p10(row, record) for row in read_rows(record) if row.p10_ms}
    if missing := [name for name in (base, *words) if name not in times]:
        raise InputError(f"{record}: {missing[0]} was not timed, expected a row for each line of {page.name}")
    found = [Outcome(name, said, interval(name, words), times[base] / times[name]) for name, said in words.items()]
    return sorted(found, key=lambda outcome: -outcome.speed)


def _p10(row: Row, record: Path) -> float:
    if row.p10_ms is None:
        raise InputError(f"{record}: {row.name} was not timed")
    return row.p10_ms


def predictions(page: Path) -> dict[str, str]:
    """The predictions of a page's table in words, by the experiment's name. Raises InputError for a page without one."""
    lines = [_cells(line) for line in page.read_text().splitlines() if line.startswith("|")]
    if not lines or COLUMN not in lines[0]:
        raise InputError(f"{page}: no table that has a column {COLUMN!r}")
    column = lines[0].index(COLUMN)
    return {cells[0]: cells[column] for cells in lines[2:]}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n ").split("|")]


def interval(name: str, words: Mapping[str, str]) -> Interval:
    """What the prediction of an experiment means: the words that it begins with, up to the reason.

    `1 to 2 % slower`, `1 % faster`, `no difference`, or `as OTHER`: the prediction of that experiment, or of the one with
    that name and the number with which this one's ends. Raises InputError for others.
    """
    said = words[name]
    if found := _AMOUNT.match(said):
        least, most = float(found["least"]) / 100, float(found["most"] or found["least"]) / 100
        return Interval(1 - most, 1 - least) if found["way"] == "slower" else Interval(1 + least, 1 + most)
    if _SAME.match(said):
        return Interval(1.0, 1.0)
    if found := _AS.match(said):
        number = re.search(r"_\d+$", name)
        others = (found["other"], found["other"] + (number[0] if number else ""))
        other = next((other for other in others if other in words and other != name), None)
        if other:
            return interval(other, words)
    raise InputError(
        f"{name}: the prediction {said[:60]!r} cannot be read, expected 'N % slower', 'N to M % faster', 'no difference' or "
        "'as NAME' first"
    )
