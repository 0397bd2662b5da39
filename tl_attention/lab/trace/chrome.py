"""A timeline is written as a Chrome trace: a process for each SM, a thread for each role and for what it has in flight.

The form is the JSON object of the Trace Event Format, which chrome://tracing and ui.perfetto.dev open. Spans are
complete events, and an arrow leads from the arrival that ended a wait to the wait's end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import CHROME
from tl_attention.lab.trace.flights import flights
from tl_attention.lab.trace.flows import flows
from tl_attention.lab.trace.timeline import Span, Timeline


def write(timeline: Timeline, file: Path) -> None:
    """Writes the timeline as a Chrome trace; times are in microseconds of the first traced SM's clock."""
    events = {"traceEvents": [*events_of(timeline)], "displayTimeUnit": "ns", "otherData": timeline.about.known()}
    user_file.write(file, json.dumps(events, separators=(",", ":")) + "\n", CHROME)


def events_of(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yields the events of a timeline, names of processes and threads first."""
    for sm in dict.fromkeys(line.sm for line in timeline.lines):
        yield _name("process", f"SM {sm}", pid=sm)
    zeros, threads = [*map(timeline.zero, timeline.lines)], Counter[int]()
    places: list[dict[str, int]] = []

    def ts(line: int, cycle: int) -> float:
        return round((cycle - zeros[line]) / timeline.mhz, 4)

    for number, (line, flying) in enumerate(zip(timeline.lines, flights(timeline))):
        role = f"block {line.block}, {timeline.roles[line.role]}"
        places.append({"pid": line.sm, "tid": threads[line.sm]})
        # Spans of a thread may not overlap.
        for name, spans in (
            (role, timeline.blocks[line.block][number]),
            *((f"{role}: {name}", lane) for name, lane in flying),
        ):
            place = {"pid": line.sm, "tid": threads[line.sm]}
            threads[line.sm] += 1
            yield _name("thread", name, **place)
            for span in spans:
                begin, dur = ts(number, span.start), round((span.end - span.start) / timeline.mhz, 4)
                yield {"ph": "X", **place, "ts": begin, "dur": dur, **_told(span)}
    for number, flow in enumerate(flows(timeline)):
        for phase, n, cycle in (("s", flow.line, flow.start), ("f", flow.to, flow.wait.end)):
            told = {"ts": ts(n, cycle), "id": number, "name": str(flow.wait.what), "cat": "arrival"}
            yield {"ph": phase, **places[n], **told, **({"bp": "e"} if phase == "f" else {})}


def _told(span: Span) -> dict[str, Any]:
    args = {"tile": span.tile, "block": span.number, "cycles": span.end - span.start}
    return {"name": str(span.what), "cat": span.what.kind, "args": args}


def _name(of: str, name: str, **place: int) -> dict[str, Any]:
    """Returns the event that names a process or a thread."""
    return {"ph": "M", **place, "name": f"{of}_name", "args": {"name": name}}
