"""A flight is the time in which work goes on without the role that began it: a product, or a load.

The end of work is seen at the wait for it alone. So a product is in flight from its issue to the end of the wait for
it, and a load is on its way from its first instruction until the first wait for it is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tl_attention.lab.trace.flows import loads_awaited
from tl_attention.lab.trace.timeline import Span, Timeline

# The spans of a lane are in order, and do not overlap.
Lane = list[Span]


def flights(timeline: Timeline) -> list[list[tuple[str, Lane]]]:
    """Returns the lanes of what each line of a timeline has in flight, with their names; a name may have several."""
    found: list[list[tuple[str, Lane]]] = [[] for _ in timeline.lines]
    for spans in timeline.blocks.values():
        ends: dict[tuple[int, Span], int] = {}
        for awaited in loads_awaited(timeline, spans):
            key = awaited.line, awaited.load
            ends[key] = min(awaited.wait.end, ends.get(key, awaited.wait.end))
        for number, of_line in spans.items():
            for product, flown in in_flight(of_line).items():
                found[number] += ((f"{product} in flight", lane) for lane in lanes(flown))
        loads: dict[tuple[int, str], Lane] = defaultdict(list)
        for (number, load), end in ends.items():
            loads[number, load.what.name].append(load._replace(end=end))
        for (number, tensor), flown in sorted(loads.items()):
            found[number] += ((f"{tensor} on its way", lane) for lane in lanes(flown))
    return found


def in_flight(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """Returns for each product, by name, the spans from an issue to the end of the wait for it."""
    issued: dict[tuple[str, int, int], Span] = {}
    found: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        key = span.what.name, span.tile, span.number
        if span.what.kind == "issue":
            issued[key] = span
        elif span.what.kind == "wait" and key in issued:
            found[span.what.name].append(issued.pop(key)._replace(end=span.end))
    return found


def lanes(spans: Iterable[Span]) -> list[Lane]:
    """Returns spans in as few lanes as hold them without an overlap."""
    found: list[Lane] = []
    for span in sorted(spans, key=lambda span: span.start):
        lane = next((lane for lane in found if lane[-1].end <= span.start), None)
        if lane is None:
            found.append(lane := [])
        lane.append(span)
    return found
