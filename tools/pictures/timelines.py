"""Draws recorded timelines: pictures of two steady iterations, and one page with parts of many timelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pages.made import RESULTS

from tl_attention.lab.trace import page, picture, sheet
from tl_attention.lab.trace.timeline import Line, Timeline

FOLDER = RESULTS / "timelines"
# Each picture's timelines, above each other.
DRAWN = {
    "seed": ("seed",),
    "best": ("best",),
    "predicted": ("experiment-best", "predicted-best"),
    "exact-wait": ("experiment-best", "experiment-wait_exactly_after_112"),
    "polynomial": ("experiment-best", "experiment-exp2_polynomial"),
    "d256": ("fa3-d256_16k",),
}
# What stands on the page: the schedules, and what is compared with one of them.
SCHEDULES = ("seed", "inferred", "fa3_overlap", "ws_seed", "best", "best_causal", "d256_causal", "mma_sync")
COMPARED = ("experiment-", "causal-", "fa3-d", "fa3-softcap_16k")
BASES = ("experiment-best", "causal-best_causal")
# The two that the page opens with, and what leads back from it.
OPENED = ("seed", "best")
BACK = ' <small>of <a href="docs/index.html">tl-attention</a></small>'
# The page has so many cycles of each: a tile's begin, and enough iterations.
CYCLES = 100_000


def recorded_timeline(name: str) -> Timeline:
    """Reads a recorded timeline."""
    return Timeline.read(FOLDER / f"{name}.json")


def svg(names: Sequence[str]) -> str:
    """Draws two steady iterations of each of these timelines, as SVG."""
    return sheet.saved(picture.drawn([*map(recorded_timeline, names)]), "svg").decode()


def begin_of(timeline: Timeline) -> Timeline:
    """Returns the first CYCLES of the first traced thread block."""
    first = timeline.lines[0]

    def cut(line: Line) -> Line:
        count = sum(time < first.times[0] + CYCLES for time in line.times)
        return replace(line, times=line.times[:count], marks=line.marks[:count])

    return replace(timeline, lines=tuple(cut(line) for line in timeline.lines if line.block == first.block))


def site() -> str:
    """Makes the page of the begins of all schedules and of what is compared with them."""
    others = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem.startswith(COMPARED))
    names = dict.fromkeys((*OPENED, *SCHEDULES, *(name for name in others if name not in BASES)))
    return page.text([begin_of(recorded_timeline(name)) for name in names], BACK)


MADE: dict[str, Callable[[], str]] = {
    **{f"docs/pictures/timeline-{name}.svg": partial(svg, names) for name, names in DRAWN.items()},
    "docs/_extra/timelines.html": site,
}
