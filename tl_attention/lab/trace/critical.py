"""The critical path is what the end of a tile had to wait for: found backward, from role to role and through products.

A role's time is on it until a wait that something else ended. Where another role's arrival ended it, the path goes on
in that role, before the arrival. Where a product ended it, the path goes through the tensor pipe to the product's
issue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from tl_attention.lab.trace.flights import in_flight
from tl_attention.lab.trace.flows import Flow, flows
from tl_attention.lab.trace.steady import Steady
from tl_attention.lab.trace.timeline import Span, Timeline, What

# A wait for a product that has ended takes up to so many cycles, and its mark.
OVER = 64
TENSOR_PIPE = "tensor pipe"
UNKNOWN = What("not noted", "")


class Segment(NamedTuple):
    """A Segment is a part of the path, and what took that time."""

    line: int  # the index of the role's line
    start: int  # a cycle, as is `end`
    end: int
    what: What  # A wait that begins in another role is the way of that role's arrival.


def critical_path(timeline: Timeline, window: Steady) -> list[Segment]:
    """Returns the part of the tile's critical path in a window, first segments first; together they are all of it.

    The path begins at the tile's end, in the role that issued the last product: so the window's end is not special.
    """
    walk = _Walk(timeline, timeline.lines[window.line].block)
    path = walk.back(walk.last_issuer(window.tile_end), window.tile_end, window.begin)
    clipped = (
        segment._replace(start=max(segment.start, window.begin), end=min(segment.end, window.end)) for segment in path
    )
    return [segment for segment in clipped if segment.start < segment.end][::-1]


def path_in_words(path: Iterable[Segment], least: float = 0.005) -> str:
    """Says what a path is made of: the part of each kind and of each thing, in percent, the largest first.

    What takes less than `least` of the path, 0 to 1, goes without a word.
    """
    cycles = Counter[What]()
    for segment in path:
        cycles[segment.what] += segment.end - segment.start
    kinds = Counter[str]()
    for what, count in cycles.items():
        kinds[what.kind] += count
    enough = least * cycles.total()

    def percent(count: int, name: str) -> str:
        return f"{100 * count / cycles.total():.0f} % {name}".strip()

    found = []
    for kind, total in kinds.most_common():
        parts = [(what.name, count) for what, count in cycles.most_common() if what.kind == kind and count >= enough]
        if total >= enough and len(parts) > 1:
            found.append(f"{percent(total, kind)} ({', '.join(percent(count, name) for name, count in parts)})")
        elif total >= enough:
            found.append(percent(total, f"{kind} {parts[0][0]}" if parts else kind))
    return ", ".join(found)


class _Walk:
    """A _Walk goes back in time through the lines of a thread block."""

    def __init__(self, timeline: Timeline, block: int):
        self.timeline = timeline
        self.spans = timeline.blocks[block]
        self.starts = {n: [span.start for span in spans] for n, spans in self.spans.items()}

    @cached_property
    def flows(self) -> dict[tuple[int, Span], Flow]:
        """Returns for each wait, by its line, the last arrival that it waited for, of the same thread block."""
        found = sorted(flows(self.timeline), key=lambda flow: flow.start)
        return {(flow.to, flow.wait): flow for flow in found if {flow.line, flow.to} <= {*self.spans}}

    @cached_property
    def issues(self) -> dict[tuple[int, str, int], int]:
        """Returns the cycle of a product's issue, by line, name and the end of the wait for it."""
        return {
            (n, name, flight.end): flight.start
            for n, spans in self.spans.items()
            for name, flights in in_flight(spans).items()
            for flight in flights
        }

    def last_issuer(self, end: int) -> int:
        """Returns the line of the role that issues the last product before a cycle."""
        last = {
            n: max((span.start for span in spans if span.what.kind == "issue" and span.start < end), default=-1)
            for n, spans in self.spans.items()
        }
        return max(last, key=lambda n: last[n])

    def back(self, line: int, end: int, begin: int) -> Iterator[Segment]:
        """Yields the segments from `end` in a line back to `begin`, the last first."""
        while end > begin:
            from_line, segment = self._before(line, end, begin)
            yield segment
            line, end = from_line, segment.start

    def _before(self, line: int, end: int, begin: int) -> tuple[int, Segment]:
        """Returns the segment that ends in a line at a cycle, and the line in which the path goes on before it."""
        number = bisect_left(self.starts[line], end) - 1
        if number < 0:
            return line, Segment(line, begin, end, UNKNOWN)
        span = self.spans[line][number]
        if span.end < end:
            return line, Segment(line, span.end, end, UNKNOWN)
        flow = self.flows.get((line, span))
        if flow and span.start < flow.start < end:
            return flow.line, Segment(line, flow.start, end, span.what)
        issue = self.issues.get((line, span.what.name, span.end)) if span.what.kind == "wait" else None
        if issue is not None and end - span.start > OVER:
            return line, Segment(line, issue, end, What(TENSOR_PIPE, span.what.name))
        return line, Segment(line, span.start, end, span.what)
