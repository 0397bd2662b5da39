"""The terminal shows progress, then the tables and what is said below them."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tl_attention.errors import printable
from tl_attention.lab.measure import records
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.profile import ProfileRow
from tl_attention.lab.measure.records import Row, grouped
from tl_attention.lab.show import cells, profile, report
from tl_attention.lab.show.table import Table

# Where stderr is a file, progress takes a line so often: a kernel takes longer to compile, a round of samples less.
LINE_INTERVAL_S, STATUS_INTERVAL_S = 2.0, 10.0
Of = TypeVar("Of")


class ProgressBar:
    """A `ProgressBar` shows progress on stderr, as bars on a terminal, else as a line for each slow step.

    It implements measure.trials.Progress.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False)
        # 80 columns hold all of it.
        self._progress = Progress(
            TextColumn("{task.description:24}", markup=False),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._total, self._done, self._of = 0, 0, ""
        self._started = self._told = 0.0

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def phase(self, name: str, total: int, of: str = "step") -> None:
        self._total, self._done, self._of = total, 0, of
        self._started = self._told = time.monotonic()
        self._say(f"{name}: {counted(total, of)}")
        self._task = self._progress.add_task(name, total=total, what="")

    def advance(self, what: str) -> None:
        assert self._task is not None
        self._progress.update(self._task, advance=1, what=printable(what))
        self._done += 1
        now = time.monotonic()
        # One step alone ends where the next phase begins.
        if self._total > 1 and (self._done == self._total or now - self._told >= LINE_INTERVAL_S):
            self._told = now
            at = f"{self._of} {self._done} of {self._total}"
            self._say(f"  {f'{at}: {printable(what)}' if what else at}, {now - self._started:.0f} s")

    def status(self, seconds: float, total: float, what: str) -> None:
        """Shows how far a phase of so many seconds is, and what it has found: a bar, or a line every ten seconds."""
        if self._task is None:
            self._task = self._progress.add_task("search", total=round(total), what="")
        self._progress.update(self._task, completed=min(round(seconds), round(total)), what=printable(what))
        if seconds - self._told >= STATUS_INTERVAL_S or seconds < self._told:
            self._told = seconds
            self._say(f"  {seconds:.0f} of {total:.0f} s: {printable(what)}")

    def each(self, name: str, kernels: Sequence[Of], words: Callable[[Of], str]) -> Iterator[Of]:
        """Yields kernels one after another, and shows at which it is, such as `kernel 3 of 4: best`."""
        task = self._progress.add_task(name, total=len(kernels), what="")
        for number, kernel in enumerate(kernels, 1):
            what = printable(f"kernel {number} of {len(kernels)}: {words(kernel)}")
            self._progress.update(task, completed=number - 1, what=what)
            self._say(f"{name}: {what}")
            yield kernel
        self._progress.update(task, completed=len(kernels), what="")

    def say(self, line: str) -> None:
        """Prints a line that stays, above the bars."""
        self._console.print(printable(line), highlight=False, soft_wrap=True)

    def show(self, line: str) -> None:
        """Prints a line of the command's output to stdout, above the bars where that is their terminal too."""
        if self._console.is_terminal and sys.stdout.isatty():
            self.say(line)
        else:
            print(printable(line), flush=True)

    def _say(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, soft_wrap=True)


def counted(number: int, what: str) -> str:
    """Returns a number with its noun, in the plural unless it is 1."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Output:
    """An `Output` prints tables and sentences to stdout, as wide as the terminal, or as COLUMNS says, else 80.

    It wraps sentences on a terminal only.
    """

    def __init__(self) -> None:
        # What is printed is data: brackets in it are no markup.
        self._console = Console(markup=False, highlight=False)
        self.width = shutil.get_terminal_size((80, 24)).columns

    def table(self, table: Table) -> None:
        """Prints a table as it is, however wide."""
        self._print(self._wrapped(printable(table.title)))
        self._print(table.lines())

    def fitting(self, table: Table) -> None:
        """Prints a table of the columns that fit, and the names of the others."""
        shown, left_out = table.fitting(self.width)
        self.table(table.picked(shown))
        self.say_left_out([table.headings[n] for n in left_out])

    def say_left_out(self, headings: Collection[str]) -> None:
        """Prints a line that names the columns that did not fit, and nothing if there are none."""
        if headings:
            self.say(f"also recorded: {', '.join(headings)}; a wider terminal shows them, or COLUMNS=160")

    def say(self, *lines: str) -> None:
        """Prints sentences, wrapped on a terminal only.

        A program reads them whole; a terminal would break them inside a word.
        """
        for line in "\n".join(lines).split("\n") if lines else ():
            line = printable(line)
            self._print(self._wrapped(line) if self._console.is_terminal else [line])

    def _wrapped(self, line: str) -> list[str]:
        indent = " " * 4
        lines = textwrap.wrap(
            line, self.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        return lines or [""]

    def _print(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True)


def show_cells(rows: Sequence[CellRow]) -> None:
    """Prints a table of cells for each run, and the lines below it."""
    output = Output()
    for of_run in cells.by_run(rows):
        output.fitting(cells.table(of_run))
        output.say(*cells.below(of_run), "")


def show_tables(problems: Sequence[Sequence[Row]], baseline: str | None = None, loops: bool = False) -> None:
    """Prints a table for each problem and, if `loops`, the loops of its kernels.

    Below the tables of a run come the reasons. The columns that say something and fit are shown, and the others are
    named.
    """
    output = Output()
    others: dict[str, None] = {}
    for run in grouped(problems, lambda rows: rows[0].run).values():
        tables = [report.table(rows, baseline) for rows in run]
        # All tables of a run have the same columns.
        whole = replace(tables[0], rows=[line for table in tables for line in table.rows])
        shown, left_out = whole.fitting(output.width)
        others |= dict.fromkeys(whole.headings[n] for n in left_out)
        for rows, table in zip(run, tables):
            output.table(table.picked(shown))
            output.say(*report.loop_lines(rows) if loops else ())
            output.say("")
        output.say(*report.reasons([row for rows in run for row in rows]))
    output.say_left_out(others)


def show(rows: Sequence[Row], path: Path, loops: bool = False) -> None:
    """Prints the rows' tables and reasons, recorded times for rows not timed here, and the record's path.

    `loops` adds the loops of the kernels to the tables.
    """
    show_tables(report.by_problem(rows), loops=loops)
    output = Output()
    not_timed = [row for row in rows if row.status in report.NOT_TIMED]
    if elsewhere := report.recorded_lines(not_timed, records.rows()) if not_timed else []:
        output.say("recorded on another machine, for the same generated CUDA and the same problem:")
        output.say(*(f"  {line}" for line in elsewhere))
    output.say(f"{counted(len(rows), 'row')} in {path}")


def show_profiles(rows: Sequence[ProfileRow]) -> None:
    """Prints tables of what ncu counted of kernels, beside what theory says, and the lines below them."""
    output = Output()
    for table in profile.tables(rows):
        output.fitting(table)
        output.say("")
    output.say(*profile.below(rows))


def show_predicted(rows: Sequence[Row], predicted: Mapping[report.Kernel, str]) -> None:
    """Prints what a model of an H200 says of rows that were not timed: a time, or why there is none."""
    output = Output()
    output.say("predicted by a model of an H200, which `tl-attention predict` explains; nothing was timed:")
    output.say(
        *(f"  {line}" for problem in report.by_problem(rows) for line in report.predicted_lines(problem, predicted))
    )
