"""Draws recorded timelines: a picture of two steady iterations of each, and one page with all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pages.made import RESULTS

from tl_attention.trace import page, picture, sheet
from tl_attention.trace.timeline import Timeline

DRAWN = ("seed", "best")


def recorded(name: str) -> Timeline:
    """Reads the recorded timeline of a schedule."""
    return Timeline.read(RESULTS / f"timeline-{name}-h200.json")


def svg(name: str) -> str:
    """Draws two steady iterations of a schedule, as SVG."""
    return sheet.saved(picture.drawn([recorded(name)]), "svg").decode()


MADE: dict[str, Callable[[], str]] = {
    **{f"docs/pictures/timeline-{name}.svg": partial(svg, name) for name in DRAWN},
    "docs/_extra/timelines.html": lambda: page.text([*map(recorded, DRAWN)]),
}
