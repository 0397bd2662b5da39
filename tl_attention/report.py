"""Rows as tables: for the terminal and, in Markdown, for the README."""

from __future__ import annotations

from typing import Callable, Sequence

from tl_attention.errors import InputError
from tl_attention.records import Row
from tl_attention.sass import describe

PEER_BASELINE = "cudnn"
Cell = Callable[[Row], str]


def _number(value: float | None, digits: int = 0, scale: float = 1.0) -> str:
    return "" if value is None else f"{value / scale:.{digits}f}"


def _times(row: Row) -> str:
    if row.median_ms is None:
        return ""
    spread = f" ({row.p10_ms:.3f}-{row.p90_ms:.3f})" if row.p10_ms is not None and row.p90_ms is not None else ""
    return f"{row.median_ms:.3f}{spread}"


def _error(row: Row) -> str:
    return _number(row.error_rms / row.error_rms_budget, 2) if row.error_rms and row.error_rms_budget else ""


def _code(row: Row) -> str:
    return f"{row.fingerprint or ''} = {row.same_code_as}" if row.same_code_as else row.fingerprint or ""


# Column, its heading, and the cell that it takes from a row. `ratio` compares rows, so `cells` computes it.
COLUMNS: dict[str, tuple[str, Cell]] = {
    "schedule": ("schedule", lambda row: row.name),
    "sizes": ("sizes", lambda row: row.sizes),
    "status": ("status", lambda row: row.status),
    "ms": ("ms (p10-p90)", _times),
    "tflops": ("TFLOPS", lambda row: _number(row.tflops)),
    "matmul": ("% of matmul", lambda row: _number(row.percent_of_matmul, 1)),
    "ratio": ("speed / {baseline}", lambda row: ""),
    "error": ("error/budget", _error),
    "registers": ("registers", lambda row: _number(row.registers)),
    "spills": ("spills", lambda row: _number(row.stack_bytes)),
    "shared": ("shared kB", lambda row: _number(row.shared_bytes, 0, 1024)),
    "code": ("code", _code),
}


def parse_columns(text: str | None) -> tuple[str, ...]:
    """`schedule,ms,ratio` -> names of COLUMNS, all of them for None. Raises InputError."""
    if text is None:
        return tuple(COLUMNS)
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise InputError(f"columns: {name[:40]!r} is no column, expected some of {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise InputError(f"columns: {name!r} is given twice, expected once")
    return names


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Timed rows, fastest first, then the others."""
    return sorted(rows, key=lambda row: (row.median_ms is None, row.median_ms or 0.0, row.status, row.name))


def by_problem(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one problem in one run together, ranked: times of two runs are not compared."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.run, str(row.shape)), []).append(row)
    return [ranked(group) for group in groups.values()]


def check_baseline(rows: Sequence[Row], baseline: str | None) -> None:
    """Raise InputError unless some row can be compared with the named baseline; the default may be absent."""
    timed = sorted({row.name for row in rows if row.median_ms is not None})
    if baseline is not None and baseline not in timed:
        raise InputError(
            f"baseline: no timed row is named {baseline[:40]!r}, expected one of {', '.join(timed) or 'none: no times'}"
        )


def cells(row: Row, columns: Sequence[str] = tuple(COLUMNS), reference: Row | None = None) -> tuple[str, ...]:
    """One row's cells; `reference` is the row that the ratio is relative to."""
    return tuple(_ratio(row, reference) if column == "ratio" else COLUMNS[column][1](row) for column in columns)


def headings(columns: Sequence[str] = tuple(COLUMNS), baseline: str | None = None) -> tuple[str, ...]:
    """The headings of these columns."""
    return tuple(COLUMNS[column][0].format(baseline=baseline or PEER_BASELINE) for column in columns)


def reference_row(rows: Sequence[Row], baseline: str | None = None) -> Row | None:
    """The baseline's row among those of one table; the faster one of a schedule with both kinds of sizes."""
    named = [row for row in rows if row.name == (baseline or PEER_BASELINE) and row.median_ms]
    return min(named, key=lambda row: row.median_ms or 0.0, default=None)


def title(rows: Sequence[Row]) -> str:
    """The problem, device and matrix product that a table's rows share, and the run that they are of."""
    row = next((row for row in rows if row.matmul_tflops), rows[0])
    matmul = f", matrix product {row.matmul_tflops:.0f} TFLOPS" if row.matmul_tflops else ""
    run = f", {row.run}" if row.run else ""
    return f"{row.shape}, {row.device or 'no GPU'}{matmul}{run}"


def reasons(rows: Sequence[Row]) -> list[str]:
    """Why each row that is not ok is not."""
    return [f"{row.name} ({row.sizes}): {row.status}: {row.reason}" for row in rows if row.reason]


def loop_lines(rows: Sequence[Row]) -> list[str]:
    """The loops of each row's machine code; rows recorded before they were read, and peers, have none."""
    return [f"{row.name} ({row.sizes}): {loop}" for row in rows for loop in describe(row.loops)]


def markdown_table(
    rows: Sequence[Row], columns: Sequence[str] = tuple(COLUMNS), baseline: str | None = None
) -> str:
    """One problem's rows in Markdown, with only some columns if wanted."""
    reference = reference_row(rows, baseline)
    lines = [_line(headings(columns, baseline)), "|" + " --- |" * len(columns)]
    return "\n".join(lines + [_line(cells(row, columns, reference)) for row in rows])


def _ratio(row: Row, reference: Row | None) -> str:
    if reference is None or not row.median_ms or not reference.median_ms:
        return ""
    return f"{reference.median_ms / row.median_ms:.3f}"


def _line(values: Sequence[str]) -> str:
    # A bar in a name would start a cell of its own.
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"
