"""`report`: the tables of what `run`, `bench`, `compare` and `submit --evaluate` recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tl_attention.cli.command import command
from tl_attention.cli.measure import RUNS
from tl_attention.errors import InputError, printable

if TYPE_CHECKING:
    from tl_attention.leaderboard.contract import TestLine
    from tl_attention.leaderboard.results import Evaluation
    from tl_attention.measure.cell_records import CellRow
    from tl_attention.measure.records import Row


# What `profile` wrote it shows itself: `tl-attention profile --of FILE`.
OTHER_KIND = "profile-"


@dataclass
class _Recorded:
    """What files hold: rows, cells, the evaluations that one table can hold together, and what is wrong with other lines."""

    rows: list[Row] = field(default_factory=list)
    cells: list[CellRow] = field(default_factory=list)
    evaluations: dict[tuple[str, tuple[TestLine, ...]], list[tuple[str, Evaluation]]] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)


@command(
    examples={
        "report": "the newest record in runs/",
        "report mine.jsonl --columns schedule,ms,ratio": "three columns of another one",
        "report results/bench-h200-L.jsonl --markdown": "tables to paste into a page",
    }
)
@click.argument("results", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--markdown", is_flag=True, help="print the tables in Markdown, with all columns unless --columns says otherwise"
)
@click.option(
    "--columns",
    help="the columns of the rows of run and bench, separated by commas: schedule, sizes, status, ms, tflops, "
    "matmul, ratio, error, registers, stack, shared, code  [default: those that fit]",
)
@click.option("--loops", is_flag=True, help="show the loops of each kernel's machine code too, as run does")
@click.option(
    "--baseline", help="the peer or schedule that ratios are relative to  [default: cudnn, where there is a row of it]"
)
def report(results: tuple[Path, ...], markdown: bool, columns: str | None, loops: bool, baseline: str | None) -> None:
    """Show recorded rows as tables, those of the newest file in runs/ where no file is named.

    There is a table for each run and problem, and for the cells of `compare` one for each run. A line that is not a row is
    named on stderr and skipped. The exit code is 0 if there was anything to show.
    """
    from tl_attention.show.report import PEER_BASELINE, by_problem, check_baseline, parse_columns

    chosen = parse_columns(columns)
    results = results or (_newest(),)
    recorded = _read(results)
    evaluated = [name for group in recorded.evaluations.values() for name, _ in group]
    if not recorded.rows and not recorded.cells and not evaluated:
        nothing = (
            f"{results[0]}: no rows, expected the JSON lines that run, bench, compare or submit --evaluate recorded"
        )
        raise InputError(recorded.bad[0] if recorded.bad else nothing)
    check_baseline(recorded.rows, baseline, also=evaluated)
    for line in recorded.bad:
        click.echo(f"skipped: {printable(line)}", err=True)
    tables = by_problem(recorded.rows)
    if markdown:
        _print_markdown(tables, chosen, baseline, loops)
    elif tables:
        from tl_attention.show.console import show_tables

        show_tables(tables, chosen, baseline, loops)
    if recorded.cells:
        _show_cells(recorded.cells, markdown)
    for (heading, _), group in recorded.evaluations.items():
        _show_evaluations(heading, group, markdown, baseline or PEER_BASELINE)


def _newest() -> Path:
    """The newest record in runs/, which a line on stderr names. Raises InputError where there is none."""
    found = [path for path in RUNS.glob("*.jsonl") if not path.name.startswith(OTHER_KIND) and path.is_file()]
    if not found:
        raise InputError(
            f"report: no record in {RUNS}/, expected a file that `tl-attention run` or `bench` has written"
        )
    newest = max(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
    click.echo(printable(f"{newest}, the newest of {len(found)} in {RUNS}/"), err=True)
    return newest


def _read(paths: Sequence[Path]) -> _Recorded:
    """Everything in the files. Raises InputError for a file that cannot be read."""
    from tl_attention.measure.records import read_lines

    recorded = _Recorded()
    for path in paths:
        lines, bad = read_lines(path), []
        for where, line in lines:
            try:
                _read_line(line, where, path, recorded)
            except InputError as error:
                bad.append(str(error))
        # A file of something else is one mistake, however many lines it has.
        of_something_else = len(bad) == len(lines) > 1
        recorded.bad += [f"{bad[0]} (and {len(bad) - 1} more lines)"] if of_something_else else bad
    return recorded


def _read_line(line: bytes, where: str, path: Path, recorded: _Recorded) -> None:
    from tl_attention.leaderboard.results import is_evaluation, read_evaluation, title
    from tl_attention.measure.cell_records import is_cell, parse_cell
    from tl_attention.measure.records import parse_object, parse_row

    values = parse_object(line, where)
    if is_cell(values):
        recorded.cells.append(parse_cell(line, where))
        return
    if not is_evaluation(values):
        recorded.rows.append(parse_row(line, where))
        return
    name, evaluation = read_evaluation(line, values, where)
    table = f"{title(evaluation)}, {path}", tuple(row.line for row in evaluation.rows)
    recorded.evaluations.setdefault(table, []).append((name, evaluation))


def _print_markdown(
    tables: Sequence[Sequence[Row]], columns: Sequence[str] | None, baseline: str | None, loops: bool
) -> None:
    from tl_attention.show.report import COLUMNS, loop_lines, markdown_table, title

    texts = [f"{title(rows)}\n\n{markdown_table(rows, columns or tuple(COLUMNS), baseline)}\n" for rows in tables]
    if loops:
        texts = ["\n".join([text, "```", *loop_lines(rows), "```\n"]) for text, rows in zip(texts, tables)]
    for text in texts:
        click.echo(text)


def _show_cells(rows: Sequence[CellRow], markdown: bool) -> None:
    from tl_attention.show import cells
    from tl_attention.show.console import show_cells

    if not markdown:
        show_cells(rows)
        return
    for of_run in cells.by_run(rows):
        click.echo(cells.markdown(of_run))


def _show_evaluations(
    heading: str, evaluations: Sequence[tuple[str, Evaluation]], markdown: bool, baseline: str
) -> None:
    from tl_attention.leaderboard import results
    from tl_attention.show.text_table import markdown as markdown_lines

    against = baseline if baseline in dict(evaluations) else None
    names, lines = results.headings(against), results.lines(evaluations, against)
    if markdown:
        click.echo(f"{printable(heading)}\n\n{markdown_lines(names, lines)}\n")
        return
    from tl_attention.show.console import show_columns

    show_columns(heading, names, lines, results.PRIORITY)
