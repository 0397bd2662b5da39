"""The times that were recorded elsewhere and travel with the package (`results/`)."""

from __future__ import annotations

from typing import Sequence

from tl_attention.records import Row, read_rows
from tl_attention.shipped import folder


def rows() -> list[Row]:
    """Every shipped row that has a time, in the order of the files; evaluations of submissions are no rows."""
    files = sorted(folder("results").glob("*.jsonl"))
    return [
        row for file in files if not file.name.startswith("evaluate-") for row in read_rows(file)
        if row.median_ms is not None
    ]


def recorded_for(row: Row, rows: Sequence[Row]) -> Row | None:
    """The first of `rows` that is of this row's generated code and problem (sizes, dtype, mask), under any name."""
    if row.fingerprint is None:
        return None
    return next((r for r in rows if r.fingerprint == row.fingerprint and r.problem == row.problem), None)
