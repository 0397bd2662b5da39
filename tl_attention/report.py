"""Rows as tables: for the terminal and, in Markdown, for the README."""

from __future__ import annotations

from typing import Sequence

from rich.table import Table

from tl_attention.records import Row

COLUMNS = (
    "schedule", "sizes", "status", "ms (p10-p90)", "TFLOPS", "% of matmul", "error/budget", "registers", "spills",
    "shared kB", "code",
)
PEER_BASELINE = "cudnn"


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Timed rows, fastest first, then the others."""
    return sorted(rows, key=lambda row: (row.median_ms is None, row.median_ms or 0.0, row.status, row.name))


def cells(row: Row) -> tuple[str, ...]:
    """One row's cells, in the order of COLUMNS."""
    times = f"{row.median_ms:.3f} ({row.p10_ms:.3f}-{row.p90_ms:.3f})" if row.median_ms is not None else ""
    error = f"{row.error_rms / row.error_rms_budget:.2f}" if row.error_rms and row.error_rms_budget else ""
    code = row.fingerprint or ""
    return (
        row.name,
        row.sizes,
        row.status,
        times,
        f"{row.tflops:.0f}" if row.tflops else "",
        f"{row.percent_of_matmul:.1f}" if row.percent_of_matmul else "",
        error,
        str(row.registers or ""),
        "" if row.stack_bytes is None else str(row.stack_bytes),
        f"{row.shared_bytes / 1024:.0f}" if row.shared_bytes else "",
        f"{code} = {row.same_code_as}" if row.same_code_as else code,
    )


def title(row: Row) -> str:
    """The problem, device and clock that a table's rows share."""
    p = row.problem
    seq = p["seq_q"] if p["seq_q"] == p["seq_kv"] else f"{p['seq_q']}/{p['seq_kv']}"
    problem = f"({p['batch']}, {p['heads']}, {seq}, {p['head_dim']}) {p['dtype']}{' causal' if p['causal'] else ''}"
    matmul = f", matrix product {row.matmul_tflops:.0f} TFLOPS" if row.matmul_tflops else ""
    return f"{problem}, {row.device or 'no GPU'}{matmul}"


def by_problem(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one problem together, ranked."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row.problem), []).append(row)
    return [ranked(group) for group in groups.values()]


def terminal_table(rows: Sequence[Row]) -> Table:
    """A table of one problem's rows."""
    heading = next((row for row in rows if row.matmul_tflops), rows[0])
    table = Table(title=title(heading), title_justify="left")
    for column in COLUMNS:
        table.add_column(column, no_wrap=column in ("schedule", "status"), overflow="fold")
    for row in rows:
        table.add_row(*cells(row))
    return table


def reasons(rows: Sequence[Row]) -> list[str]:
    """Why each row that is not ok is not."""
    return [f"{row.name} ({row.sizes}): {row.status}: {row.reason}" for row in rows if row.reason]


def markdown_table(rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> str:
    """The same table in Markdown, with only some columns if wanted."""
    keep = [COLUMNS.index(column) for column in columns]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        values = cells(row)
        lines.append("| " + " | ".join(values[index] for index in keep) + " |")
    return "\n".join(lines)
