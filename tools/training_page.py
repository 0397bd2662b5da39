"""Makes the section of docs/pytorch-measurements.md on training, and docs/training.svg, from the record.

    python tools/training_page.py

It stands between two markers. A test holds page and picture to the record.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from cells_page import PAGE, ROOT, measured_on, with_section
from training import NAMES, TrainingRun, judged, parse_training
from training_chart import chart

from tl_attention.measure.records import read_lines, shape_of
from tl_attention.show.text_table import markdown

RECORD = ROOT / "results/training-h200.jsonl"
PICTURE = ROOT / "docs/training.svg"
BEGIN, END = "<!-- training -->", "<!-- end of training -->"


def read(path: Path = RECORD) -> list[TrainingRun]:
    """The runs of a record."""
    return [parse_training(line, where) for where, line in read_lines(path)]


def section(runs: Sequence[TrainingRun]) -> str:
    """What stands between the markers."""
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
    picture = f"![Losses with three attentions]({PICTURE.name})"
    return "\n\n".join([BEGIN, about, picture, markdown(headings, lines), verdicts, END])


def _rate(runs: Sequence[TrainingRun]) -> str:
    found = [run.steps_per_second for run in runs if run.steps_per_second]
    return f"{statistics.median(found):.1f}" if found else ""


if __name__ == "__main__":
    found = read(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD)
    PAGE.write_text(with_section(PAGE.read_text(), section(found), BEGIN, END))
    PICTURE.write_text(chart(found))
