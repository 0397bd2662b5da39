"""Makes the section of docs/pytorch-measurements.md on training from its record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from measurements.losses import NAMES, TrainingRun, judged

from pages.cells import measured_on
from pages.made import RESULTS
from tl_attention.measure.records import read_all, shape_of
from tl_attention.show.table import markdown

RECORD = RESULTS / "training-h200.jsonl"
PICTURE = "docs/training.svg"


def read(path: Path = RECORD) -> list[TrainingRun]:
    """Reads the runs of a record."""
    return read_all(TrainingRun, path)


def section(runs: Sequence[TrainingRun]) -> str:
    """Makes the section: the setting, the picture, a line for each attention, a verdict for each seed."""
    seeds, first = judged(runs), runs[0]
    about = (
        f"{first.layers} layers, attention {shape_of(first.problem)}, {first.steps} steps, AdamW at {first.rate:g}; "
        f"{measured_on(first)}"
    )
    lines = [
        [
            words,
            *(f"{seed.smooth[name][-1]:.5f}" if seed.smooth[name] else "not finite" for seed in seeds),
            _rate([run for run in runs if run.attention == name]),
        ]
        for name, words in NAMES.items()
    ]
    headings = ["attention", *(f"last loss, seed {seed.seed}" for seed in seeds), "steps per second"]
    verdicts = "\n".join(f"- {seed.verdict}" for seed in seeds)
    picture = f"![Losses with three attentions]({Path(PICTURE).name})"
    return "\n\n".join([about, picture, markdown(headings, lines), verdicts])


def _rate(runs: Sequence[TrainingRun]) -> str:
    found = [run.steps_per_second for run in runs if run.steps_per_second]
    return f"{statistics.median(found):.1f}" if found else ""
