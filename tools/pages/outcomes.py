"""Predictions of the experiments, in words, as intervals of speed, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pages.made import RESULTS, SCHEDULES
from tl_attention.errors import InputError
from tl_attention.measure.records import read_rows

# How far outside of its interval a speed may be, in both directions, and still be what was predicted: the noise.
NOISE = 0.01
# Of the speeds' last digit, in floating point.
ROUNDING = 1e-9
PREDICTION = re.compile(r"^# Prediction: (.*)$", re.MULTILINE)
_AMOUNT = re.compile(r"(?P<least>[\d.]+)(?: to (?P<most>[\d.]+))? % (?P<way>slower|faster)\b")
_SAME = re.compile(r"no difference\b")
_AS = re.compile(r"as (?P<other>\w+)\b")


class Experiments(NamedTuple):
    """The schedules of a folder, each of which changes one thing in `base`, and their record in results/."""

    folder: Path
    record: str
    base: str

    def path(self, name: str) -> Path:
        """The file of an experiment."""
        return self.folder / f"{name}.yaml"


EXPERIMENTS = (
    Experiments(SCHEDULES / "experiments", "experiments-h200.jsonl", "best"),
    Experiments(SCHEDULES / "experiments/causal", "experiments-causal-h200.jsonl", "best_causal"),
)


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


def outcomes(experiments: Experiments) -> list[Outcome]:
    """The outcomes of a base's experiments, the fastest first; a speed is the median of paired ratios.

    Raises InputError for a prediction that cannot be read, and for an experiment that the record does not have.
    """
    words = predictions(experiments.folder)
    rows = {row.name: row for row in read_rows(RESULTS / experiments.record)}
    speeds = {name: row.speed(rows[experiments.base]) for name, row in rows.items() if experiments.base in rows}
    found = []
    for name, said in words.items():
        speed = speeds.get(name)
        if speed is None:
            raise InputError(f"{experiments.record}: {name} was not timed, expected a row for each file of its folder")
        found.append(Outcome(name, said, interval(name, words), speed))
    return sorted(found, key=lambda outcome: -outcome.speed)


def predictions(folder: Path) -> dict[str, str]:
    """The prediction in each file of a folder, by the file's name. Raises InputError for a file without one."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        said = PREDICTION.search(path.read_text())
        if not said:
            raise InputError(f"{path}: no line `# Prediction: ...`")
        found[path.stem] = said[1]
    return found


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
