"""Times that were recorded, on another machine than this one: what the shipped results say of a schedule."""

from __future__ import annotations

import functools
import re
from contextlib import suppress

from tl_attention import catalogue
from tl_attention.errors import InputError
from tl_attention.named import resolve
from tl_attention.problem import DTYPE_NAMES
from tl_attention.records import Row, read_rows
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


def time_of(name: str, dtype: str, causal: bool, *, label: str | None = None) -> Row | None:
    """The recorded row of a schedule that reads its sizes at run time, or of a peer; of problem L where that was timed.

    A schedule's rows are those of its label: of `label` if given, else of the schedule that ships under this name. So a
    row that was recorded before a schedule changed is not taken for it.
    """
    if label is None and catalogue.path_of(name) is not None:
        label = resolve(name).schedule.label
    wanted = (name, "peer") if label is None else (label, "runtime")
    found = [
        row for row in rows()
        if (row.name if label is None else row.label, row.sizes) == wanted
        and row.problem["dtype"] == DTYPE_NAMES.get(dtype, dtype) and row.problem["causal"] == causal
    ]
    return next((row for row in found if sizes_of(row) == LARGE), found[0] if found else None)
