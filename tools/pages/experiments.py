"""Makes docs/experiments.md from schedules/experiments/ and the records in results/."""

from __future__ import annotations

from collections.abc import Iterator

from pages.cells import measured_on
from pages.made import RESULTS, Make
from pages.outcomes import EXPERIMENTS, NOISE, Experiments, outcomes
from tl_attention.lab.measure.records import Row, read_rows
from tl_attention.lab.show.table import markdown
from tl_attention.schedule.files.schedule_file import load_file

HEAD = f"""# Experiments

What is each choice in `best` worth? Each experiment is a schedule that changes one thing in `best` or, for causal masks, in
`best_causal`. Its prediction stands in its file and was written before the experiment was first timed.

![Prediction and outcome of the experiments](pictures/predictions.svg)

- *speed* is the median, over rounds, of the base's time divided by the experiment's time in the same round, and its range.
  Below 1 the change costs time. In the first table the card runs at its power limit: the ranges are wide, and differences of
  1 to 2 % say little.
- A prediction is *true* if the speed lies in the predicted interval, widened by {100 * NOISE:g} % on both sides.
- *wait* says where the machine code waits for MMA1: after how many of the loop's exponentials, two of which belong to the
  rescale. A chunk of N columns has N / 2. With `waits: loose`, the default, ptxas chooses the place within what the schedule
  fixes; with `waits: exact` the schedule does.

`python tools/make.py docs/experiments.md` makes this page from `schedules/experiments/` and the records.
"""


def page() -> str:
    """Makes the text of the whole page."""
    parts = [HEAD, *(line for experiments in EXPERIMENTS for line in section(experiments))]
    return "\n".join(parts).rstrip("\n") + "\n"


def section(experiments: Experiments) -> Iterator[str]:
    """Makes the section of a base's experiments, the fastest first."""
    rows = {row.name: row for row in read_rows(RESULTS / experiments.record)}
    base = rows[experiments.base]
    found = outcomes(experiments)
    true = sum(one.came_true for one in found)
    yield f"## {experiments.base}, {base.shape}\n"
    yield f"{true} of {len(found)} predictions came true.\n"
    lines = [
        [
            f"`{one.name}`",
            load_file(experiments.path(one.name)).summary,
            one.words.rstrip("."),
            "true" if one.came_true else "no",
            f"{one.speed:.3f} ({min(speeds):.3f}-{max(speeds):.3f})",
            f"{rows[one.name].median_ms:.3f}",
            wait(rows[one.name]),
        ]
        for one in found
        if (speeds := rows[one.name].speeds(base))
    ]
    yield f"{markdown(['experiment', 'change', 'prediction', 'true?', 'speed (range)', 'ms', 'wait'], lines)}\n"
    yield f"`results/{experiments.record}`: {measured_on(base)}\n"


def wait(row: Row) -> str:
    """Says after how many of the loop's exponentials the loop waits for MMA1."""
    loop = row.loops[0]
    return f"{loop.product_waits[-1]} of {loop.exponentials}"


MADE: dict[str, Make] = {"docs/experiments.md": page}
