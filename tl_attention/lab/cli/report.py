"""`report` shows what `run`, `bench`, `compare`, `submit --evaluate` and tools/measure.py profile recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import command
from tl_attention.lab.cli.ladder import ladder_option, show_record
from tl_attention.lab.cli.measure import RUNS
from tl_attention.lab.cli.options import FILE

if TYPE_CHECKING:
    from tl_attention.lab.leaderboard.results import Evaluation
    from tl_attention.lab.measure.cell_records import CellRow
    from tl_attention.lab.measure.profile import ProfileRow
    from tl_attention.lab.measure.records import Row

    Entry: TypeAlias = "Row | CellRow | ProfileRow | _Evaluated"


class _Evaluated(NamedTuple):
    """An `_Evaluated` is a leaderboard evaluation read from a file."""

    # Of its table: evaluations of one file, mode and device stand in one table if they ran the same lines.
    heading: str
    name: str
    evaluation: Evaluation


@command(
    examples={
        "report": "the newest record in runs/",
        "report mine.jsonl --baseline seed": "another one, with speeds relative to seed",
        "report results/bench-h200-L.jsonl --markdown": "a record that ships, as tables to paste into a page",
        "report --ladder worklog": "the record of a ladder that ships, and what each step changed",
    },
    gone={"--loops": "is gone: `run NAME` shows the loops of the machine code"},
)
@click.argument("results", nargs=-1, type=FILE)
@click.option("--markdown", is_flag=True, help="print the tables in Markdown, with all columns")
@click.option(
    "--baseline", help="the peer or schedule that ratios are relative to  [default: cudnn, where there is a row of it]"
)
@ladder_option("show the rows of this ladder, by default those of its record that ships, with what each step changed")
def report(results: tuple[Path, ...], markdown: bool, baseline: str | None, ladder: str | None) -> None:
    """Show recorded rows as tables, those of the newest file in runs/ if none is named. A folder is its newest file.

    There is a table for each run and problem, for the cells of `compare` one for each run, and for counters of
    `profile` one for each kernel, beside what theory says. A line that is not a row is named on stderr and skipped. The
    exit code is 0 if there was anything to show.
    """
    files = [_newest(path) if os.path.isdir(path) else path for path in results]
    if ladder is not None:
        if markdown or baseline:
            raise InputError("--ladder: expected neither --markdown nor --baseline beside it")
        show_record(ladder, files)
        return
    from tl_attention.lab.leaderboard import results as evaluations_of
    from tl_attention.lab.measure.cell_records import CellRow
    from tl_attention.lab.measure.profile import ProfileRow
    from tl_attention.lab.measure.records import Row, grouped
    from tl_attention.lab.show import cells, profile, report
    from tl_attention.lab.show.console import Output, show_cells, show_profiles, show_tables

    files = files or [_newest(RUNS)]
    found, bad = _read(files)
    if not found:
        nothing = "no rows, expected the JSON lines that run, bench, compare or submit --evaluate recorded"
        raise InputError(bad[0] if bad else f"{files[0]}: {nothing}")
    rows = [entry for entry in found if isinstance(entry, Row)]
    of_cells = [entry for entry in found if isinstance(entry, CellRow)]
    evaluated = [entry for entry in found if isinstance(entry, _Evaluated)]
    profiled = [entry for entry in found if isinstance(entry, ProfileRow)]
    report.check_baseline(rows, baseline, also=[entry.name for entry in evaluated])
    for line in bad:
        click.echo(f"skipped: {printable(line)}", err=True)
    tables = []
    for group in grouped(evaluated, lambda of: (of.heading, tuple(row.line for row in of.evaluation.rows))).values():
        beside, evaluations = baseline or report.PEER_BASELINE, [(of.name, of.evaluation) for of in group]
        against = beside if beside in dict(evaluations) else None
        tables.append(evaluations_of.table(group[0].heading, evaluations, against))
    if not markdown:
        show_tables(report.by_problem(rows), baseline)
        show_cells(of_cells)
        for table in tables:
            Output().fitting(table)
        if profiled:
            show_profiles(profiled)
        return
    for of_problem in report.by_problem(rows):
        click.echo(report.table(of_problem, baseline).section())
    for of_run in cells.by_run(of_cells):
        click.echo(cells.markdown(of_run))
    for table in (*tables, *profile.tables(profiled)):
        click.echo(table.section())


def _newest(folder: Path) -> Path:
    """Returns the path of the newest .jsonl file in a folder, and names it on stderr."""
    found = [path for path in folder.glob("*.jsonl") if path.is_file()]
    if not found:
        raise InputError(
            f"report: no record in {folder}/, expected a file that `tl-attention run` or `bench` has written"
        )
    newest = max(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
    click.echo(printable(f"{newest}, the newest of {len(found)} in {folder}/"), err=True)
    return newest


def _read(paths: Sequence[Path]) -> tuple[list[Entry], list[str]]:
    """Returns a list of the files' rows, cells and evaluations, and a list of messages on other lines."""
    from tl_attention.lab.measure.records import read_lines

    found: list[Entry] = []
    wrong: list[str] = []
    for path in paths:
        lines, bad = read_lines(path), []
        for where, line in lines:
            try:
                found.append(_entry(line, where, path))
            except InputError as error:
                bad.append(str(error))
        # A file of something else is one mistake, however many lines it has.
        of_something_else = len(bad) == len(lines) > 1
        wrong += [f"{bad[0]} (and {len(bad) - 1} more lines)"] if of_something_else else bad
    return found, wrong


def _entry(line: bytes, where: str, path: Path) -> Entry:
    from tl_attention.lab.leaderboard.results import is_evaluation, read_evaluation, title
    from tl_attention.lab.measure.cell_records import CellRow, is_cell
    from tl_attention.lab.measure.profile import ProfileRow, is_profile
    from tl_attention.lab.measure.records import Row, parse_line, parse_object

    values = parse_object(line, where)
    if is_cell(values):
        return parse_line(CellRow, line, where)
    if is_profile(values):
        return parse_line(ProfileRow, line, where)
    if not is_evaluation(values):
        return parse_line(Row, line, where)
    name, evaluation = read_evaluation(line, values, where)
    return _Evaluated(f"{title(evaluation)}, {path}", name, evaluation)
