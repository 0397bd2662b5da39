"""Draws a training with three attentions as an SVG: the losses above, and how far ours lies from flash's below."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from measurements.losses import MOST, NAMES, SMOOTHED_OVER, Judged, TrainingRun, judged

from pictures.sheet import MARGIN, WIDTH, Sheet, measured
from pictures.style import COLOURS, DASHES, Style
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.records import shape_of

# Pixels: a panel, what is between panels, left of them, above and below.
HEIGHT, GAP, LEFT, LEGEND, SEED, BELOW = 170, 16, 70, 30, 20, 40
# Ours is the widest of the curves that lie on each other, and the lowest.
CURVES: dict[str, Style] = {
    name: {"color": COLOURS[name], "linestyle": DASHES[name], "linewidth": 3.0 if name == OURS else 1.4}
    for name in NAMES
}
DISTANCES: dict[str, Style] = {
    "tl-attention from SDPA's flash": {"color": COLOURS[OURS], "linewidth": 1.6},
    "the limit": {"color": "#c2410c", "linewidth": 1.6, "linestyle": (0, (5, 2))},
}
# A difference of 0 is drawn as this number, below the axis.
SMALLEST = 1e-9
ABOUT = (
    "The same model is trained with three attentions: {layers} layers, attention on {shape}, {steps} steps. Above are the "
    "losses, as means of {over} steps; the three curves lie on each other. Below is how far the loss with tl-attention is from "
    "the loss with {flash}. The limit is {most:g} times the largest distance between {flash} and {cudnn} up to that step."
)


def drawn(runs: Sequence[TrainingRun]) -> Figure:
    """Draws the picture: a column for each seed, all with the same two scales."""
    seeds, first = judged(runs), runs[0]
    about = ABOUT.format(
        layers=first.layers, shape=shape_of(first.problem), steps=first.steps, over=SMOOTHED_OVER, most=MOST,
        flash=NAMES["flash2"], cudnn=NAMES["cudnn"],
    )  # fmt: skip
    sheet = Sheet("Training with tl-attention", about, measured(runs), 2 * (LEGEND + HEIGHT + BELOW) + SEED)
    lower = LEGEND + SEED + HEIGHT + BELOW
    names = {**NAMES, OURS: "tl-attention"}
    sheet.legend(0, [Line2D([], [], label=names[name], **style) for name, style in CURVES.items()])
    sheet.legend(lower, [Line2D([], [], label=name, **style) for name, style in DISTANCES.items()])
    width = (WIDTH - LEFT - MARGIN - (len(seeds) - 1) * GAP) / len(seeds)
    upper_ends = ends([loss for seed in seeds for curve in seed.smooth.values() for loss in curve] or [0.0], 0.5)
    logs = [math.log10(value) for seed in seeds for value in (*seed.apart, *seed.allowed) if value > SMALLEST]
    lower_ends = [10.0**end for end in ends(logs or [-1.0], 1.0)]
    for number, seed in enumerate(seeds):
        left = LEFT + number * (width + GAP)
        for top, draw, limits in ((LEGEND + SEED, losses, upper_ends), (lower + LEGEND, distances, lower_ends)):
            axes = sheet.axes(left, top, width, HEIGHT)
            draw(axes, seed)
            axes.set_ylim(*limits)
            axes.grid(axis="y")
            axes.minorticks_off()
            if number:
                axes.tick_params(labelleft=False)
                axes.set_ylabel("")
    return sheet.figure


def losses(axes: Axes, seed: Judged) -> None:
    """Draws the loss curve of each attention."""
    for name, style in CURVES.items():
        axes.plot(_steps(seed.smooth[name]), seed.smooth[name], **style)
    axes.set_ylabel("loss")
    axes.set_title(f"seed {seed.seed}{'' if seed.ok else ', FAILED'}", loc="left")


def distances(axes: Axes, seed: Judged) -> None:
    """Draws how far our loss lies from flash's, and how far it may."""
    for values, style in zip((seed.apart, seed.allowed), DISTANCES.values()):
        axes.plot(_steps(values), [max(value, SMALLEST) for value in values], **style)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"1e{math.log10(value):.0f}")
    axes.set_ylabel("distance of the losses")
    axes.set_xlabel("step")


def _steps(values: Sequence[float]) -> range:
    return range(SMOOTHED_OVER, SMOOTHED_OVER + len(values))


def ends(values: Sequence[float], by: float) -> tuple[float, float]:
    """Returns the ends of an axis with room for all values; both are multiples of `by`."""
    return by * math.floor(min(values) / by), by * (math.floor(max(values) / by) + 1)
