"""Times that were recorded, on another machine than this one: what the shipped results say."""

from __future__ import annotations

from tl_attention.records import Row, read_rows
from tl_attention.shipped import folder


def rows() -> list[Row]:
    """Every timed row of the shipped records, file by file; evaluations of submissions are no rows."""
    files = sorted(path for path in folder("results").glob("*.jsonl") if not path.name.startswith("evaluate-"))
    return [row for path in files for row in read_rows(path) if row.median_ms is not None]
