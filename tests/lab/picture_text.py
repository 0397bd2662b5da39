"""Finds faults of a picture's text: boxes that overlap or leave the figure, letters that are too small to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import cos, radians, sin
from typing import Any

from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from pictures.style import styled

# Pixels that two boxes may share: antialiasing.
SHARED = 0.5


@dataclass(frozen=True)
class Box:
    """A box is a line of text as it is drawn."""

    text: str
    size: float  # in points
    # The edges are pixels from the upper left corner.
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Says whether two boxes share more than an edge."""
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > SHARED and down > SHARED


class _Recorder(RendererAgg):
    """Draws, and keeps the box of each line of text; text that is invisible or outside of an axis is not drawn."""

    def __init__(self, figure: Figure):
        width, height = figure.bbox.size
        super().__init__(width, height, figure.dpi)
        self.boxes: list[Box] = []

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None
    ) -> None:
        """Keeps the box of one line; matplotlib calls it once for each line, with the left end of the baseline."""
        width, height, descent = self.get_text_width_height_descent(s, prop, ismath)
        corners = [_turned(right, up, angle) for right in (0, width) for up in (-descent, height - descent)]
        across, down = [x + right for right, _ in corners], [y - up for _, up in corners]
        box = Box(s, prop.get_size_in_points(), min(across), min(down), max(across), max(down))
        self.boxes.append(box)
        super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)


def _turned(right: float, up: float, degrees: float) -> tuple[float, float]:
    c, s = cos(radians(degrees)), sin(radians(degrees))
    return right * c - up * s, right * s + up * c


def boxes(figure: Figure) -> list[Box]:
    """Returns all lines of text that are drawn."""
    recorder = _Recorder(figure)
    with styled():
        figure.draw(recorder)
    return [box for box in recorder.boxes if box.text.strip()]


def faults(figure: Figure, smallest: float) -> list[str]:
    """Says what is wrong with the text of a figure; `smallest` is the least size in points."""
    found, (width, height) = boxes(figure), figure.bbox.size
    return [*_small(found, smallest), *_outside(found, width, height), *_overlaps(found)]


def _small(found: Sequence[Box], smallest: float) -> Iterator[str]:
    return (f"{box.text!r} has {box.size:g} pt, expected at least {smallest:g}" for box in found if box.size < smallest)


def _outside(found: Sequence[Box], width: float, height: float) -> Iterator[str]:
    for box in found:
        if box.left < 0 or box.top < 0 or box.right > width or box.bottom > height:
            yield f"{box.text!r} leaves the figure"


def _overlaps(found: Sequence[Box]) -> Iterator[str]:
    return (f"{one.text!r} overlaps {other.text!r}" for one, other in combinations(found, 2) if one.overlaps(other))
