"""Times that were recorded, on another machine than this one: what the shipped results say of a schedule."""

from __future__ import annotations

import functools
import re
from contextlib import suppress
from dataclasses import replace

from tl_attention.errors import InputError
from tl_attention.measure.records import Row, read_rows
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape
from tl_attention.shipped import folder

# The leaderboard's largest problem, L.
LARGE = AttentionShape(4, 64, 8192, 8192, 128)
# Of another kind of row, and, by the time in their names, a user's own runs beside the shipped records.
LEFT_OUT = re.compile(r"(evaluate|cells|training|backward|profile)-.*|.*-\d{8}T\d{6}Z")


@functools.cache
def rows() -> list[Row]:
    """Every timed row of the shipped records, file by file."""
    found: list[Row] = []
    for path in sorted(folder("results").glob("*.jsonl")):
        if not LEFT_OUT.fullmatch(path.stem):
            # What a user keeps beside the records, in whatever state, is no reason to show none of them.
            with suppress(InputError):
                found += [row for row in read_rows(path) if row.median_ms is not None]
    return found


def run_of(labels: set[str], causal: bool) -> list[Row]:
    """The rows of one run on one problem, of schedules of these labels that read their sizes at run time.

    Of fp16 and problem L if there are, else of what most of the labels have. A schedule's rows are those of its label:
    one that was recorded before the schedule changed is not taken for it.
    """
    mask = CAUSAL if causal else FULL
    runs: dict[tuple, list[Row]] = {}
    for row in rows():
        if row.label in labels and row.sizes == "runtime" and row.shape.mask == mask:
            runs.setdefault((row.measured_in, row.shape), []).append(row)

    def rank(run: list[Row]) -> tuple:
        return (run[0].shape == replace(LARGE, mask=mask), len(run))

    return max(runs.values(), key=rank, default=[])
