"""What the terminal shows: a progress bar per phase, then the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tl_attention.records import Row
from tl_attention.report import by_problem, reasons, terminal_table

# Wide enough for every column where the output is a file.
FILE_WIDTH = 180


class ProgressBar:
    """Implements runner.Progress on the terminal's stderr; one line per phase where stderr is a file."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[what]}"), console=self._console, disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def phase(self, name: str, total: int) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{name}: {total} steps")
        self._task = self._progress.add_task(name, total=total, what="")

    def advance(self, what: str) -> None:
        assert self._task is not None
        self._progress.update(self._task, advance=1, what=what)


def show(rows: Sequence[Row], path: Path) -> None:
    """Tables, reasons, and where the record is."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    for group in by_problem(rows):
        console.print(terminal_table(group))
    for reason in reasons(rows):
        console.print(reason, markup=False, highlight=False, soft_wrap=True)
    if not any(row.median_ms for row in rows):
        console.print("nothing was timed: this machine has no GPU", markup=False)
    console.print(f"{len(rows)} rows in {path}", markup=False, highlight=False)
