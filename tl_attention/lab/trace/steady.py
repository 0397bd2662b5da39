"""This module finds two iterations that stand for all: neighbours from the middle of a tile, as long as most are."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tl_attention.errors import InputError
from tl_attention.lab.trace.shares import tile_ends
from tl_attention.lab.trace.timeline import Line, Timeline, What

FIRST = What("issue", "mma0")


class Steady(NamedTuple):
    """A Steady is two iterations of a role: from cycle `begin` to `middle`, and from there to `end`."""

    line: int  # the index of the role's line
    begin: int
    middle: int
    end: int
    tile_end: int  # the cycle at which the role ends the iterations' tile

    @property
    def cycles(self) -> float:
        """Returns the cycles of one iteration."""
        return (self.end - self.begin) / 2


def steady(timeline: Timeline) -> Steady:
    """Returns two steady iterations of the first role of the first traced thread block that multiplies.

    An iteration goes from an issue of MMA0 to the next by the same line of code. Raises InputError where no whole tile
    shows two.
    """
    block = timeline.lines[0].block
    for number, line in enumerate(timeline.lines):
        if line.block == block and FIRST in {timeline.whats[mark] for mark in line.marks}:
            for end, begins in _of_tiles(timeline, line):
                if len(begins) > 2:
                    return Steady(number, *_usual(begins), end)
            break
    raise InputError(
        f"{timeline.about.name}: the timeline shows no two steady iterations, expected a whole tile with three of "
        f"`{FIRST}` from one line of code"
    )


def _of_tiles(timeline: Timeline, line: Line) -> Iterator[tuple[int, list[int]]]:
    """Yields for each whole tile the cycle at which it ends, and those at which the steady loop's iterations begin."""
    issues = {mark for mark, what in enumerate(timeline.whats) if what == FIRST}
    for begin, end in pairwise(tile_ends(timeline, line)):
        noted = [(time, mark) for time, mark in zip(line.times, line.marks) if begin <= time < end and mark in issues]
        # The steady loop is that which runs most often: others have the masks, or the last KV block.
        usual = Counter(mark for _, mark in noted).most_common(1)
        yield end, [time for time, mark in noted if usual and mark == usual[0][0]]


def _usual(begins: Sequence[int]) -> tuple[int, int, int]:
    """Returns the begins of two iterations, and the end, from the middle half, with lengths nearest to the median."""
    middle = len(begins) / 2 - 1.5
    lengths = [end - begin for begin, end in pairwise(begins)]
    median = statistics.median(lengths)

    def unusual(n: int) -> tuple[float, float]:
        return abs(lengths[n] - median) + abs(lengths[n + 1] - median), abs(n - middle)

    n = min((n for n in range(len(lengths) - 1) if abs(n - middle) <= max(0.5, len(begins) / 4)), key=unusual)
    return begins[n], begins[n + 1], begins[n + 2]
