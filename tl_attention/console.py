"""What the terminal shows: a progress bar per phase, then the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tl_attention.records import Row
from tl_attention.report import COLUMNS, by_problem, cells, headings, loop_lines, reasons, reference_row, title

# Wide enough for every column where the output is a file.
FILE_WIDTH = 200
# Names that lose their meaning when they are broken over lines.
UNBROKEN = ("schedule", "status", "submission")


class ProgressBar:
    """Implements runner.Progress on the terminal's stderr; one line per phase where stderr is a file."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False)
        self._progress = Progress(
            TextColumn("{task.description:28}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[what]}", markup=False), console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def phase(self, name: str, total: int) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{name}: {counted(total, 'step')}", highlight=False, soft_wrap=True)
        self._task = self._progress.add_task(name, total=total, what="")

    def advance(self, what: str) -> None:
        assert self._task is not None
        self._progress.update(self._task, advance=1, what=what)


def counted(number: int, what: str) -> str:
    """1 step, 2 steps."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def stdout_console() -> Console:
    """Stdout; what is printed is data, so brackets in it are no markup."""
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=FILE_WIDTH)


def table_of(heading: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table with a heading above it."""
    table = Table(title=heading, title_justify="left")
    for name in names:
        table.add_column(name, no_wrap=name in UNBROKEN, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def show_tables(
    tables: Sequence[Sequence[Row]], columns: Sequence[str] = tuple(COLUMNS), baseline: str | None = None,
    loops: bool = False,
) -> None:
    """One table for each problem, with the loops of its kernels if wanted, then the reasons."""
    console = stdout_console()
    for rows in tables:
        reference = reference_row(rows, baseline)
        lines = [cells(row, columns, reference) for row in rows]
        console.print(table_of(title(rows), headings(columns, baseline), lines))
        for line in loop_lines(rows) if loops else ():
            console.print(line, soft_wrap=True)
    for reason in (reason for rows in tables for reason in reasons(rows)):
        console.print(reason, soft_wrap=True)


def show(rows: Sequence[Row], path: Path, loops: bool = False) -> None:
    """Tables, with the loops of the kernels if wanted, reasons, and where the record is."""
    show_tables(by_problem(rows), loops=loops)
    console = stdout_console()
    if any(row.status == "checked_on_cpu" for row in rows):
        console.print("nothing was timed: this machine has no GPU", soft_wrap=True)
    console.print(f"{counted(len(rows), 'row')} in {path}", soft_wrap=True)
