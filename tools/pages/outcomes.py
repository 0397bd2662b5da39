"""Reads the experiments' predictions, as words and as intervals of speed, and compares them with measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pages.made import RESULTS, SCHEDULES
from tl_attention.errors import InputError
from tl_attention.lab.measure.records import read_rows

# How far outside of its interval a speed may be, in both directions, and still be what was predicted: the noise.
NOISE = 0.01
# The rounding of a speed's last digit, in floating point.
ROUNDING = 1e-9
PREDICTION = re.compile(r"^# Prediction: (.*)$", re.MULTILINE)
_AMOUNT = re.compile(r"(?P<least>[\d.]+)(?: to (?P<most>[\d.]+))? % (?P<way>slower|faster)\b")
_SAME = re.compile(r"no difference\b")
_AS = re.compile(r"as (?P<other>\w+)\b")


class Experiments(NamedTuple):
    """Experiments are the schedules of a folder, each with one change to `base`, and their record in results/."""

    folder: Path
    record: str
    base: str

    def path(self, name: str) -> Path:
        """Returns the file of an experiment."""
        return self.folder / f"{name}.yaml"


EXPERIMENTS = (
    Experiments(SCHEDULES / "experiments", "experiments-h200.jsonl", "best"),
    Experiments(SCHEDULES / "experiments/causal", "experiments-causal-h200.jsonl", "best_causal"),
)


@dataclass(frozen=True)
class Interval:
    """An interval has speeds divided by the base's speed: 0.98 to 0.99 is 1 to 2 % slower."""

    low: float
    high: float

    def holds(self, speed: float) -> bool:
        """Says whether a speed is in the interval, or no further outside than noise."""
        return self.low - NOISE - ROUNDING <= speed <= self.high + NOISE + ROUNDING


@dataclass(frozen=True)
class Outcome:
    """An outcome has what was predicted of an experiment, and what was measured."""

    name: str
    predicted: Interval
    speed: float  # that was measured

    @property
    def came_true(self) -> bool:
        """Says whether the speed is what was predicted."""
        return self.predicted.holds(self.speed)


def outcomes(experiments: Experiments) -> list[Outcome]:
    """Returns the outcomes of a base's experiments that were timed, the fastest first.

    A speed is the median of paired ratios. Raises InputError for a prediction that cannot be read.
    """
    words = predictions(experiments.folder)
    rows = {row.name: row for row in read_rows(RESULTS / experiments.record)}
    speeds = {name: row.speed(rows[experiments.base]) for name, row in rows.items() if experiments.base in rows}
    found = []
    for name in words:
        predicted, speed = interval(name, words), speeds.get(name)
        if speed is not None:
            found.append(Outcome(name, predicted, speed))
    return sorted(found, key=lambda outcome: -outcome.speed)


def predictions(folder: Path) -> dict[str, str]:
    """Reads the prediction in each file of a folder, by the file's name. Raises InputError for a file without one."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        said = PREDICTION.search(path.read_text())
        if not said:
            raise InputError(f"{path}: no line `# Prediction: ...`")
        found[path.stem] = said[1]
    return found


def interval(name: str, words: Mapping[str, str]) -> Interval:
    """Returns what the prediction of an experiment means, by the words with which it begins, up to the reason.

    The words are `1 to 2 % slower`, `1 % faster`, `no difference`, or `as OTHER`. `as OTHER` means the prediction of
    that experiment, or of the experiment with that name and the number with which this experiment's name ends. Raises
    InputError for other words.
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
