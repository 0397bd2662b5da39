"""A Flow says which role's arrival made it possible that a role of the same thread block went on after a wait.

How sure that is depends on the wait. A load is told by its tile and KV block, but when its data came is seen at the
wait alone. Where roles take turns, make room or meet, it is the last arrival in the time of the wait. An arrival lies
in a span: at its end where the role issues products, as it arrives behind them, else at its begin. BAR.SYNC lets the
instructions behind it begin before it stops the role: then the wait shows in the next span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tl_attention.codeproof.mark_places import NAMED_BARRIER
from tl_attention.lab.trace.timeline import Span, Timeline, What

Q, FULL, THREADS = "Q", "_full", What("wait", "threads")
Spans = Mapping[int, Sequence[Span]]


class Flow(NamedTuple):
    """A Flow goes from an arrival in one line to the wait in another that the arrival ended."""

    line: int  # the index of the arrival's line
    start: int  # the arrival's cycle
    to: int  # the index of the wait's line
    wait: Span


class Awaited(NamedTuple):
    """An Awaited is a wait, and the load that it is for."""

    to: int  # the index of the wait's line
    wait: Span
    line: int  # the index of the load's line
    load: Span


def flows(timeline: Timeline) -> tuple[Flow, ...]:
    """Returns the flows of a timeline's thread blocks, one for each wait that another role's arrival is known for."""
    found: list[Flow] = []
    for spans in timeline.blocks.values():
        found += (*_met(spans), *_arrived(timeline, spans))
        found += (Flow(line, load.start, to, wait) for to, wait, line, load in loads_awaited(timeline, spans))
    return tuple(found)


def loads_awaited(timeline: Timeline, spans: Spans) -> Iterator[Awaited]:
    """Yields the waits of a thread block for what another of its roles loads, with the load.

    K and V are told by their tile and KV block. Of Q each consumer awaits its own part, and they are loaded in the
    consumers' order. A window that skips iterations has none of these: it begins in other tiles for each role.
    """
    if timeline.about.skip:
        return
    loads = {
        (span.what.name, span.tile, span.number): (line, span)
        for line, of_line in spans.items()
        for span in of_line
        if span.what.kind == "load"
    }
    for to, of_line in spans.items():
        for wait in filter(_is_full, of_line):
            tensor = wait.what.name.removesuffix(FULL)
            number = timeline.lines[to].role if tensor == Q else wait.number
            line, load = loads.get((tensor, wait.tile, number), (to, wait))
            if line != to and load.start < wait.end:
                yield Awaited(to, wait, line, load)


def _is_full(span: Span) -> bool:
    return span.what.kind == "wait" and span.what.name.endswith(FULL)


def _met(spans: Spans) -> Iterator[Flow]:
    """Yields for each __syncthreads the flows from the role that comes last to the others."""
    waits = [
        [(number, n, span.start) for n, span in enumerate(of_line) if span.what == THREADS]
        for number, of_line in spans.items()
    ]
    for meeting in zip(*waits):
        last, _, begun = max(meeting, key=lambda one: one[2])
        for number, n, _ in meeting:
            shows = next((span for span in spans[number][n : n + 2] if span.end > begun), None)
            if number != last and shows:
                yield Flow(last, begun, number, shows)


def _arrived(timeline: Timeline, spans: Spans) -> Iterator[Flow]:
    """Yields the flows to waits at mbarriers and named barriers, but not those for loads."""
    arrivals: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, of_line in spans.items():
        for mark, span in zip(timeline.lines[number].marks, of_line):
            for barrier in timeline.arrives[mark]:
                arrivals[barrier].append((span.end if span.what.kind == "issue" else span.start, number))
    for times in arrivals.values():
        times.sort()
    for number, of_line in spans.items():
        for n, span in enumerate(of_line):
            barrier = span.what.name
            if span.what.kind == "wait" and not _is_full(span) and arrivals[barrier]:
                behind = of_line[n + 1 : n + 2] if barrier == NAMED_BARRIER else ()
                together = [span, *(one for one in behind if one.what.kind == "wait")]
                found = _last(arrivals[barrier], together[0].start, together[-1].end, number)
                if found:
                    yield Flow(*found, number, next(one for one in together if found[1] <= one.end))


def _last(arrivals: Sequence[tuple[int, int]], start: int, end: int, but: int) -> tuple[int, int] | None:
    """Returns the line and the cycle of the last arrival from start to end, but by one line; None if there is none."""
    n = bisect_right(arrivals, (end, len(arrivals)))
    while n and arrivals[n - 1][0] >= start:
        cycle, number = arrivals[n := n - 1]
        if number != but:
            return number, cycle
    return None
