"""Losses of a training with three attentions, an SVG: the losses above, below how far ours lies from flash's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from training import NAMES, SMOOTHED_OVER, Judged

from tl_attention.measure.cell import OURS

# Pixels: of a seed's panel, between them, of the margins.
WIDTH, HEIGHT, GAP, LEFT, TOP, BETWEEN, BOTTOM = 300, 150, 24, 60, 58, 40, 34
COLOURS = {OURS: "#c04030", "flash2": "#4878a8", "cudnn": "#60a060"}
ALLOWED, LINE, TEXT = "#e09040", "#999", "#444"
# Dashes let the curves below show, which lie on each other.
DASHES = {OURS: "2 6", "flash2": "none", "cudnn": "7 5"}
# What a difference of 0 is drawn as, where all are.
SMALLEST = 1e-9


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, which lie at `bottom` and HEIGHT above; of a logarithm where it is one."""

    low: float
    high: float
    bottom: float
    label: Callable[[float], str]

    def y(self, value: float) -> float:
        """Its place from above."""
        return self.bottom - HEIGHT * (value - self.low) / (self.high - self.low)


def chart(seeds: Sequence[Judged]) -> str:
    """The picture: a column for each seed, all of the same two scales."""
    steps = max((len(seed.apart) for seed in seeds), default=0)
    losses = [loss for seed in seeds for smooth in seed.smooth.values() for loss in smooth] or [0.0]
    top = Axis(math.floor(2 * min(losses)) / 2, math.floor(2 * max(losses)) / 2 + 0.5, TOP + HEIGHT, "{:.1f}".format)
    logs = [_log(value) for seed in seeds for value in (*seed.apart, *seed.allowed) if value > SMALLEST] or [-1.0]
    low = Axis(math.floor(min(logs)), math.floor(max(logs)) + 1, top.bottom + BETWEEN + HEIGHT, "1e{:.0f}".format)
    width, height = LEFT + len(seeds) * (WIDTH + GAP), low.bottom + BOTTOM
    body = [*_legend(), *_scale(top, 0.5, width), *_scale(low, 1.0, width)]
    for number, seed in enumerate(seeds):
        left = LEFT + number * (WIDTH + GAP)
        body += _panel(seed, left, steps, top, low)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" font-family="sans-serif" '
    paper = f'<rect width="{width}" height="{height:g}" fill="#ffffff"/>'
    return "\n".join([f'{head}font-size="12" fill="{TEXT}">', paper, *body, "</svg>\n"])


def _log(value: float) -> float:
    return math.log10(max(value, SMALLEST))


def _scale(axis: Axis, by: float, width: float) -> Iterator[str]:
    for number in range(round((axis.high - axis.low) / by) + 1):
        value = axis.low + number * by
        y = axis.y(value)
        yield f'<path d="M{LEFT} {y:g}H{width - GAP}" stroke="{LINE}" stroke-width="0.5"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:g}" text-anchor="end">{axis.label(value)}</text>'


def _panel(seed: Judged, left: float, steps: int, top: Axis, low: Axis) -> Iterator[str]:
    for name in sorted(seed.smooth, key=lambda name: name == OURS):
        yield _curve(seed.smooth[name], left, steps, top, COLOURS[name], f"loss, {NAMES[name]}", DASHES[name])
    logs = [[_log(value) for value in values] for values in (seed.allowed, seed.apart)]
    yield _curve(logs[0], left, steps, low, ALLOWED, "allowed")
    yield _curve(logs[1], left, steps, low, COLOURS[OURS], "ours from flash's")
    verdict = "" if seed.ok else ", FAILED"
    last = SMOOTHED_OVER + steps - 1
    yield f'<text x="{left + WIDTH / 2:g}" y="{low.bottom + 24:g}" text-anchor="middle">seed {seed.seed}{verdict}</text>'
    yield f'<text x="{left}" y="{low.bottom + 24:g}">{SMOOTHED_OVER}</text>'
    yield f'<text x="{left + WIDTH}" y="{low.bottom + 24:g}" text-anchor="end">{last}</text>'


def _curve(
    values: Sequence[float], left: float, steps: int, axis: Axis, colour: str, title: str, dash: str = "none"
) -> str:
    # What lies below the scale is drawn on its edge: a difference of 0 has no logarithm.
    places = [
        f"{left + WIDTH * n / max(steps - 1, 1):.1f},{min(axis.y(value), axis.bottom):.1f}"
        for n, value in enumerate(values)
    ]
    style = f'fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"'
    return f'<polyline points="{" ".join(places)}" {style}><title>{title}</title></polyline>'


def _legend() -> Iterator[str]:
    yield (
        f'<text x="{LEFT}" y="16">loss, means of {SMOOTHED_OVER} steps (above), and how far ours lies from that of '
        "SDPA's flash (below), step by step</text>"
    )
    named = [*((NAMES[name], colour) for name, colour in COLOURS.items()), ("allowed", ALLOWED)]
    for number, (text, colour) in enumerate(named):
        x = LEFT + number * 120
        yield f'<rect x="{x}" y="27" width="10" height="10" fill="{colour}"/><text x="{x + 15}" y="36">{text}</text>'
