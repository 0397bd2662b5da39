"""One self-contained HTML page shows timelines above each other, on a canvas to zoom, drag and point at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import PAGE
from tl_attention.lab.trace.colours import COLOURS
from tl_attention.lab.trace.flights import flights
from tl_attention.lab.trace.flows import flows
from tl_attention.lab.trace.timeline import Span, Timeline

TEMPLATE = Path(__file__).with_name("page.html")
DATA, OF_KINDS, BACK = "/*TIMELINES*/[]", "/*COLOURS*/{}", "<!--BACK-->"


def write(timelines: Sequence[Timeline], file: Path) -> None:
    """Writes a page of these timelines; they begin at the same left edge, each with its first traced thread block."""
    user_file.write(file, text(timelines), PAGE)


def text(timelines: Sequence[Timeline], back: str = "") -> str:
    """Returns the text of a page of these timelines, with what leads `back`, in HTML, behind its title."""
    # No name can end the element that holds the data.
    told = json.dumps([*map(_told, timelines)], separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text().replace(OF_KINDS, json.dumps(COLOURS)).replace(BACK, back).replace(DATA, told)


def _told(timeline: Timeline) -> dict[str, Any]:
    about = timeline.about
    return {
        "name": about.name,
        "title": f"{about.name}, {about.shape}, {about.device}",
        "mhz": timeline.mhz,
        "roles": timeline.roles,
        "whats": [*map(str, timeline.whats)],
        "kinds": [what.kind for what in timeline.whats],
        "lanes": [*_lanes(timeline)],
    }


def _lanes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yields a lane for each role of each thread block, and those of what it has in flight."""
    whats = {what: number for number, what in enumerate(timeline.whats)}
    ended = {(flow.to, flow.wait): flow for flow in sorted(flows(timeline), key=lambda flow: flow.start)}
    for number, (line, flying) in enumerate(zip(timeline.lines, flights(timeline))):
        zero = round(timeline.zero(line))

        def told(spans: Iterable[Span], number: int = number, zero: int = zero) -> Iterator[tuple[int, ...]]:
            for s in spans:
                flow = ended.get((number, s))
                by = (timeline.lines[flow.line].role, flow.start - zero) if flow else ()
                # From the timeline's begin; at the end the role and the cycle of the arrival that ended a wait.
                yield s.start - zero, s.end - s.start, whats[s.what], s.tile, s.number, *by

        name = f"SM {line.sm}, block {line.block}, {timeline.roles[line.role]}"
        yield {"name": name, "spans": [*told(timeline.blocks[line.block][number])]}
        for what, lane in flying:
            yield {"name": what, "flight": True, "spans": [*told(lane)]}
