"""This module shows rows as tables, for the terminal and, in Markdown, for the README, and what is said below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tl_attention.errors import InputError, printable
from tl_attention.lab.machine_code.sass import describe
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.records import PRODUCTS, Row, grouped
from tl_attention.lab.show.table import Column, Table, number
from tl_attention.problem.card import KIB
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.program.asked_waits import asked_waits_of

PEER_BASELINE = "cudnn"
PEER_NAMES = {"fa3": "FlashAttention-3", "cudnn": "cuDNN", "flash2": "FlashAttention-2"}


def times(row: Row) -> str:
    if row.median_ms is None:
        return ""
    spread = f" ({row.p10_ms:.3f}-{row.p90_ms:.3f})" if row.p10_ms is not None and row.p90_ms is not None else ""
    return f"{row.median_ms:.3f}{spread}"


def _error(row: Row) -> str:
    # The largest error: the mean one is PyTorch's own in every row, which is half of its budget.
    if row.error_max_abs is None or not row.error_max_abs_budget:
        return ""
    return number(row.error_max_abs / row.error_max_abs_budget, 2)


def _code(row: Row) -> str:
    return f"{row.fingerprint or ''} = {row.same_code_as}" if row.same_code_as else row.fingerprint or ""


NOT_TIMED = ("checked_on_cpu", "compiled")


# A row's schedule and problem: its name, how its sizes are known, and its shape.
Kernel = tuple[str, str, AttentionShape]


def kernel_of(row: Row | Candidate) -> Kernel:
    """Returns what tells the kernels of one run apart."""
    return row.name, row.sizes, row.shape


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows sorted, timed rows first from fastest to slowest, then the others by status and name."""
    return sorted(rows, key=lambda row: (row.median_ms is None, row.median_ms or 0.0, row.status, row.name))


def by_problem(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows in lists, one per run and problem, each with the fastest first and untimed rows last.

    Times of two runs are not compared.
    """
    return [ranked(group) for group in grouped(rows, lambda row: (row.run, str(row.shape))).values()]


def check_baseline(rows: Sequence[Row], baseline: str | None, also: Sequence[str] = ()) -> None:
    """Raises InputError if `baseline` is given and is neither the name of a timed row nor in `also`.

    The default may be absent.
    """
    timed = sorted({row.name for row in rows if row.median_ms is not None}.union(also))
    if baseline is not None and baseline not in timed:
        raise InputError(
            f"baseline: no timed row is named {baseline[:40]!r}, expected one of {', '.join(timed) or 'none: no times'}"
        )


def table(rows: Sequence[Row], baseline: str | None = None) -> Table:
    """Makes the table of one problem's rows, with speeds relative to the row of `baseline`, by default `cudnn`."""
    reference = reference_row(rows, baseline)

    def speed(row: Row) -> str:
        return number(row.speed(reference) if reference else None, 3)

    columns = (
        Column("schedule", lambda row: row.name, 0),
        Column("sizes", lambda row: row.sizes, 1),
        Column("status", lambda row: row.status, 2),
        Column("ms (p10-p90)", times, 3),
        Column("TFLOPS", lambda row: number(row.tflops), 5),
        Column("% of matmul", lambda row: number(row.percent_of_matmul, 1), 6),
        Column(f"speed / {baseline or PEER_BASELINE}", speed, 4),
        Column("max error / budget", _error, 7),
        Column("registers", lambda row: number(row.registers), 8),
        Column("stack B", lambda row: number(row.stack_bytes), 9),
        Column("shared kB", lambda row: number(row.shared_bytes, 0, KIB), 10),
        Column("code", _code, 11),
    )
    return Table.of(title(rows), columns, rows)


def reference_row(rows: Sequence[Row], baseline: str | None = None) -> Row | None:
    """Returns the fastest timed row that is named `baseline`, by default `cudnn`; None if there is none."""
    named = [row for row in rows if row.name == (baseline or PEER_BASELINE) and row.median_ms]
    return min(named, key=lambda row: row.median_ms or 0.0, default=None)


def title(rows: Sequence[Row]) -> str:
    """Returns a table's title, with the problem, device, plain product's rate and run of its rows."""
    row = next((row for row in rows if row.matmul_tflops), rows[0])
    plain = f", {PRODUCTS.get(row.product, row.product)} {row.matmul_tflops:.0f} TFLOPS" if row.matmul_tflops else ""
    run = f", {row.run}" if row.run else ""
    return printable(f"{row.shape}, {row.device or 'no GPU'}{plain}{run}")


def reasons(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each status and reason among the rows, with the names of the rows that have it.

    Rows with the same reason come together, named in a second line.
    """
    found = []
    groups = grouped([row for row in rows if row.reason], lambda row: (row.status, row.reason))
    for (status, reason), group in groups.items():
        who, why = printable(_who(group, rows)), printable(reason)
        several = f"{status}, {len(group)} rows: {why}\n    {who}"
        found.append(several if len(group) > 1 else f"{who}: {status}: {why}")
    return found


def loop_lines(rows: Sequence[Row]) -> list[str]:
    """Returns lines that describe the loops of each row's machine code.

    Rows recorded before loops were read, and peers, have none.
    """
    return [
        f"{printable(_who([row], rows))}: {loop}"
        for row in rows
        for loop in describe(row.loops, asked_waits_of(row.label) if row.loops else None)
    ]


def recorded_lines(rows: Sequence[Row], recorded: Sequence[Row]) -> list[str]:
    """Returns a line with the time for each row not timed here whose code and problem have a time in `recorded`."""
    lines = []
    for row in rows:
        found = recorded_for(row, recorded) if row.status in NOT_TIMED else None
        if found and found.median_ms:
            name = f" as {found.name}" if found.name != row.name else ""
            lines.append(
                printable(
                    f"{_who([row], rows)}: {found.median_ms:.3f} ms{name}, {number(found.tflops)} TFLOPS "
                    f"({found.device}, {found.run[:10]}){_other_machine_code(row, found)}"
                )
            )
    return lines


def predicted_lines(rows: Sequence[Row], predicted: Mapping[Kernel, str]) -> list[str]:
    """Returns a line for each row whose kernel is in `predicted`, which has its predicted time or why there is none."""
    return [printable(f"{_who([row], rows)}: {predicted[of]}") for row in rows if (of := kernel_of(row)) in predicted]


def recorded_for(row: Row, recorded: Sequence[Row]) -> Row | None:
    """Returns the first recorded row with this row's generated code, arch and problem, under any name, or None."""
    if row.fingerprint is None:
        return None
    return next(
        (r for r in recorded if r.fingerprint == row.fingerprint and r.arch == row.arch and r.shape == row.shape), None
    )


def _other_machine_code(row: Row, found: Row) -> str:
    """Returns words that name both rows' compilers if their machine code differs or, in old records, may differ."""
    compilers = [
        f"nvcc {of.nvcc} with ptxas {of.ptxas}" if of.nvcc else "an unrecorded compiler" for of in (found, row)
    ]
    codes = (found.machine_code, row.machine_code)
    same = codes[0] == codes[1] if all(codes) else compilers[0] == compilers[1]
    verb = "differs" if all(codes) else "may differ"
    return "" if same else f"; the machine code {verb}: {compilers[0]} made it there, {compilers[1]} here"


def _who(group: Sequence[Row], rows: Sequence[Row]) -> str:
    """Returns a group's names with their sizes and what differs: `seed, best (runtime); wide (runtime, fixed)`."""
    shapes = {row.shape for row in rows}
    several_dtypes = len({shape.dtype for shape in shapes}) > 1
    several_problems = len({replace(shape, dtype=DTYPES[0]) for shape in shapes}) > 1

    def variant(row: Row) -> str:
        return f"{row.sizes} {row.shape if several_problems else row.shape.dtype if several_dtypes else ''}".rstrip()

    variants = {name: ", ".join(map(variant, of)) for name, of in grouped(group, lambda row: row.name).items()}
    names = grouped(variants, lambda name: variants[name])
    return "; ".join(f"{', '.join(same)} ({which})" for which, same in names.items())
