"""Times that were recorded, on another machine than this one: what the shipped results say of a schedule."""

from __future__ import annotations

import functools
import re
from contextlib import suppress

from tl_attention.errors import InputError
from tl_attention.measure.records import Row, read_rows
from tl_attention.shipped import folder

# (batch, heads, seq_q, seq_kv, head_dim) of the leaderboard's largest problem, L.
LARGE = (4, 64, 8192, 8192, 128)
SIZES = ("batch", "heads", "seq_q", "seq_kv", "head_dim")
# Of another kind of row, and, by the time in their names, a user's own runs beside the shipped records.
LEFT_OUT = re.compile(r"evaluate-.*|.*-\d{8}T\d{6}Z")


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


def sizes_of(row: Row) -> tuple[int, ...]:
    """The row's problem, as LARGE is."""
    return tuple(row.problem[size] for size in SIZES)


def run_of(labels: set[str], causal: bool) -> list[Row]:
    """The rows of one run on one problem, of schedules of these labels that read their sizes at run time.

    Of fp16 and problem L if there are, else of what most of the labels have. A schedule's rows are those of its label:
    one that was recorded before the schedule changed is not taken for it.
    """
    runs: dict[tuple, list[Row]] = {}
    for row in rows():
        if row.label in labels and row.sizes == "runtime" and row.problem["causal"] == causal:
            runs.setdefault((row.measured_in, str(row.shape)), []).append(row)

    def rank(run: list[Row]) -> tuple:
        return (run[0].problem["dtype"] == "float16" and sizes_of(run[0]) == LARGE, len(run))

    return max(runs.values(), key=rank, default=[])
