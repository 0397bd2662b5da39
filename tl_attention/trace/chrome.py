"""A timeline is written as a Chrome trace: a process for each SM, a thread for each role and each product in flight.

The form is the JSON object of the Trace Event Format, which chrome://tracing and ui.perfetto.dev open. Spans are complete
events, and an arrow leads from the arrival that ended a wait to the wait's end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tl_attention.files import user_file
from tl_attention.trace.flows import flows
from tl_attention.trace.timeline import Line, Span, Timeline

# A role's thread numbers: its own, and one for each product in flight, as spans of a thread may not overlap.
LANES = 10


def write(timeline: Timeline, file: Path) -> None:
    """Writes the timeline as a Chrome trace; times are in microseconds of the first traced SM's clock."""
    events = {"traceEvents": [*events_of(timeline)], "displayTimeUnit": "ns", "otherData": dict(timeline.about)}
    user_file.write(file, json.dumps(events, separators=(",", ":")) + "\n")


def events_of(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yields the events of a timeline, names of processes and threads first."""
    for sm in dict.fromkeys(line.sm for line in timeline.lines):
        yield _name("process", f"SM {sm}", pid=sm)
    for line in timeline.lines:
        yield from _of_line(timeline, line)
    zeros = [*map(timeline.zero, timeline.lines)]
    for number, flow in enumerate(flows(timeline)):
        for phase, n, cycle in (("s", flow.line, flow.start), ("f", flow.to, flow.wait.end)):
            line = timeline.lines[n]
            ts = round((cycle - zeros[n]) / timeline.mhz, 4)
            told = {"pid": line.sm, "tid": line.role * LANES, "ts": ts, "id": number, "name": str(flow.wait.what)}
            yield {"ph": phase, **told, "cat": "arrival", **({"bp": "e"} if phase == "f" else {})}


def _of_line(timeline: Timeline, line: Line) -> Iterator[dict[str, Any]]:
    role, zero = timeline.roles[line.role], timeline.zero(line)
    threads = {role: [*timeline.spans(line)]}
    for product, spans in in_flight(threads[role]).items():
        threads[f"{role}: {product} in flight, from issue to wait"] = spans
    for number, (name, spans) in enumerate(threads.items()):
        place = {"pid": line.sm, "tid": line.role * LANES + number}
        yield _name("thread", name, **place)
        for span in spans:
            begin, end = ((cycle - zero) / timeline.mhz for cycle in (span.start, span.end))
            yield {
                "ph": "X",
                **place,
                "ts": round(begin, 4),
                "dur": round(end - begin, 4),
                "name": str(span.what),
                "cat": span.what.kind,
                "args": {"tile": span.tile, "block": span.number, "cycles": span.end - span.start},
            }


def _name(of: str, name: str, **place: int) -> dict[str, Any]:
    """Returns the event that names a process or a thread."""
    return {"ph": "M", **place, "name": f"{of}_name", "args": {"name": name}}


def in_flight(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Returns for each product, by name, the spans from an issue to the end of the wait for it.

    When a product ended is seen at its wait alone.
    """
    issued: dict[tuple[str, int, int], Span] = {}
    found: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        key = span.what.name, span.tile, span.number
        if span.what.kind == "issue":
            issued[key] = span
        elif span.what.kind == "wait" and key in issued:
            found[span.what.name].append(issued.pop(key)._replace(end=span.end))
    return found
