"""One self-contained HTML page shows timelines above each other, on a canvas to zoom, drag and point at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tl_attention.files import user_file
from tl_attention.trace.chrome import in_flight
from tl_attention.trace.colours import COLOURS
from tl_attention.trace.timeline import Span, Timeline

TEMPLATE = Path(__file__).with_name("page.html")
DATA, OF_KINDS = "/*TIMELINES*/[]", "/*COLOURS*/{}"


def write(timelines: Sequence[Timeline], file: Path) -> None:
    """Writes a page of these timelines; they begin at the same left edge, each with its first traced thread block."""
    told = json.dumps([*map(_told, timelines)], separators=(",", ":")).replace("</", "<\\/")
    user_file.write(file, TEMPLATE.read_text().replace(OF_KINDS, json.dumps(COLOURS)).replace(DATA, told))


def _told(timeline: Timeline) -> dict[str, Any]:
    about = timeline.about
    return {
        "title": f"{about['name']} on {about['device']}",
        "mhz": timeline.mhz,
        "whats": [*map(str, timeline.whats)],
        "kinds": [what.kind for what in timeline.whats],
        "lanes": [*_lanes(timeline)],
    }


def _lanes(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yields a lane for each role of each thread block, and one for each of its products in flight.

    Spans are (first cycle since the timeline's begin, cycles, number of what it is, tile, number in the tile).
    """
    whats = {what: number for number, what in enumerate(timeline.whats)}
    for line in timeline.lines:
        zero = round(timeline.zero(line))

        def told(spans: Sequence[Span], zero: int = zero) -> list[tuple[int, ...]]:
            return [(s.start - zero, s.end - s.start, whats[s.what], s.tile, s.number) for s in spans]

        spans = [*timeline.spans(line)]
        name = f"SM {line.sm}, block {line.block}, {timeline.roles[line.role]}"
        yield {"name": name, "spans": told(spans)}
        for product, flights in in_flight(spans).items():
            yield {"name": f"   {product} in flight", "flight": True, "spans": told(flights)}
