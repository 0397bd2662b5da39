"""Draws what was predicted of each experiment beside what was measured, sorted by speed, a panel for each base."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MultipleLocator
from pages.outcomes import EXPERIMENTS, NOISE, Outcome, outcomes

from pictures.sheet import MARGIN, WIDTH, Draw, Sheet, measured
from pictures.style import COLOURS, LINE, PAPER, QUIET, Style
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.records import read_rows

# Pixels.
LINE_HEIGHT, NAMES_WIDTH, LEGEND, NAMED, BELOW, BETWEEN = 17, 158, 40, 24, 44, 22
TRUE, FALSE = COLOURS[OURS], COLOURS["fa3"]
PREDICTED, WIDENED = "#8a8a8a", "#e2e2e2"
ABOUT = (
    "Each experiment changes one thing in the schedule that is named above. Bars show the change of speed that was predicted "
    "before the first run, and marks show what was measured (the median of paired ratios). A prediction came true if the measured "
    f"change lies in the bar, widened by the noise of a run: {100 * NOISE:g} % on both sides."
)


def draw(results: Path) -> Figure:
    """Draws the picture of the experiments, from the records in a folder."""
    found = [outcomes(experiments) for experiments in EXPERIMENTS]
    rows = [read_rows(results / experiments.record) for experiments in EXPERIMENTS]
    count = max(map(len, found))
    foot = measured([row for of in rows for row in of], *(experiments.record for experiments in EXPERIMENTS))
    foot += " docs/experiments.md has the predictions in words."
    sheet = Sheet(
        "Predictions of the experiments, and what was measured",
        ABOUT,
        foot,
        LEGEND + NAMED + count * LINE_HEIGHT + BELOW,
    )
    sheet.legend(2, legend())
    width = (WIDTH - 2 * MARGIN - BETWEEN) / len(EXPERIMENTS) - NAMES_WIDTH
    ends = limits([one for of in found for one in of])
    for number, (experiments, of, of_rows) in enumerate(zip(EXPERIMENTS, found, rows)):
        left = MARGIN + NAMES_WIDTH + number * (width + NAMES_WIDTH + BETWEEN)
        axes = sheet.axes(left, LEGEND + NAMED, width, len(of) * LINE_HEIGHT)
        panel(axes, of)
        axes.set_xlim(ends)
        true = sum(one.came_true for one in of)
        sheet.text(
            left - NAMES_WIDTH, sheet.top + LEGEND - 12, f"{experiments.base}, {of_rows[0].shape}", weight="bold"
        )
        sheet.text(left - NAMES_WIDTH, sheet.top + LEGEND + 3, f"{true} of {len(of)} came true")
    return sheet.figure


def limits(found: Sequence[Outcome]) -> tuple[float, float]:
    """Returns the ends of the axis, in percent of change, with room for all outcomes."""
    low = min(min(one.speed, one.predicted.low - NOISE) for one in found)
    high = max(max(one.speed, one.predicted.high + NOISE) for one in found)
    return 100 * low - 100.7, 100 * high - 99.3


def panel(axes: Axes, found: Sequence[Outcome]) -> None:
    """Draws a line for each experiment: the interval, wide and narrow, and where the speed is."""
    axes.axvline(0, color=QUIET, linewidth=0.8, zorder=1)
    for line, one in enumerate(found):
        low, high = (100 * (end - 1) for end in (one.predicted.low, one.predicted.high))
        noise = 100 * NOISE
        axes.add_patch(Rectangle((low - noise, line - 0.36), high - low + 2 * noise, 0.72, color=WIDENED, linewidth=0))
        # An interval of one speed is a line.
        edge = 0 if high > low else 1.6
        axes.add_patch(Rectangle((low, line - 0.36), high - low, 0.72, color=PREDICTED, linewidth=edge))
        axes.plot([100 * (one.speed - 1)], [line], **mark(one.came_true))
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_yticks(range(len(found)), [one.name for one in found])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("change of speed, %")
    axes.xaxis.set_major_locator(MultipleLocator(2))
    axes.grid(axis="x", color=LINE)
    axes.spines["left"].set_visible(False)


def mark(came_true: bool) -> Style:
    """Returns the style of a mark: a full circle if the prediction came true, else an empty diamond."""
    common = {"linestyle": "none", "zorder": 4.0, "markeredgewidth": 1.4}
    if came_true:
        return {**common, "marker": "o", "markersize": 6.0, "color": TRUE}
    return {**common, "marker": "D", "markersize": 5.5, "markerfacecolor": PAPER, "markeredgecolor": FALSE}


def legend() -> list[Artist]:
    """Makes the legend, which says what marks and bars are."""
    return [
        Line2D([], [], **mark(True), label="measured, as predicted"),
        Line2D([], [], **mark(False), label="measured, not as predicted"),
        Patch(facecolor=PREDICTED, label="predicted"),
        Patch(facecolor=WIDENED, label=f"widened by {100 * NOISE:g} %"),
    ]


PICTURES: dict[str, Draw] = {"predictions": draw}
