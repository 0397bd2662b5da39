"""`compare`: the operator's benchmark, many problems in one process, each beside its peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click

from tl_attention import shipped
from tl_attention.cli.command import command
from tl_attention.cli.errors import say
from tl_attention.cli.measure import FAILED, RUNS, stamp
from tl_attention.cli.problem import MOST_ROUNDS, seed_option
from tl_attention.cli.schedules import resolve_all, texts_of
from tl_attention.errors import InputError, printable


@command(
    examples={
        "compare --only 'd64-*'": "the cells of head_dim 64",
        "compare --with mine.yaml": "a file of yours in each cell too",
        "compare --list": "the cells, without measuring them",
    }
)
@click.argument("cells", required=False, type=click.Path(path_type=Path))
@click.option(
    "--only", multiple=True, metavar="GLOB", help="take the cells of these names, such as 'd64-*' or '*-causal'"
)
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="SCHEDULE",
    help="measure this schedule too, in the cells whose head_dim it is meant for",
)
@click.option(
    "--rounds", type=click.IntRange(2, MOST_ROUNDS), help="how often every entry is timed, in turn  [default: 15]"
)
@seed_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="the file that results are added to, as JSON lines  [default: a new file in runs/]",
)
@click.option("--list", "listed", is_flag=True, help="list the cells and what they compare, and measure nothing")
def compare(
    cells: Path | None,
    only: tuple[str, ...],
    others: tuple[str, ...],
    rounds: int | None,
    seed: int | None,
    output: Path | None,
    listed: bool,
) -> None:
    """Time attention() beside its peers in many problems, the cells of a file.

    Without CELLS the file is results/cells.yaml. The entries of a cell are timed in turn, and a ratio is the median of the
    rounds' ratios. The first peer is entered twice, which shows how well a time repeats. --only and --with may be given
    several times.
    """
    from tl_attention.measure.cells_file import load_cells

    path = cells or shipped.folder("results") / "cells.yaml"
    found = load_cells(path)
    chosen = [cell for cell in found if not only or any(fnmatchcase(cell.name, glob) for glob in only)]
    if not chosen:
        names = ", ".join(cell.name for cell in found)
        raise InputError(f"--only: {' '.join(only)[:80]!r} is no cell of {path}, expected some of {names}")
    named = resolve_all(texts_of(others)) if others else []
    if listed:
        for cell in chosen:
            peers = ", ".join(peer if bar is None else f"{peer} {bar:g}" for peer, bar in cell.peers.items())
            click.echo(printable(f"{cell.name:24} {cell.shape}: {peers}"))
        return
    from tl_attention.measure.cell_records import CellRow
    from tl_attention.measure.cells import Options, measure
    from tl_attention.measure.pool import CallFailed
    from tl_attention.measure.records import ResultsFile
    from tl_attention.measure.session import ROUNDS_AGAINST
    from tl_attention.show.cells import summary
    from tl_attention.show.console import Output, ProgressBar, counted, show_cells

    with ResultsFile(output or RUNS / f"compare-{stamp()}.jsonl") as results:
        try:
            with ProgressBar() as progress:

                def record(row: CellRow) -> None:
                    results.append_json(row.to_json(), of=row.cell)
                    progress.say(summary(row))

                options = Options(rounds or ROUNDS_AGAINST, named, seed)
                rows: Sequence[CellRow] = measure(chosen, options, record, progress)
        except CallFailed as failed:
            say(f"the machine failed, not a schedule: {failed}; {results.written} cells are in {results.path}")
            sys.exit(FAILED)
    show_cells(rows)
    Output().say(f"{counted(len(rows), 'cell')} in {results.path}")
    if any(row.ours.median_ms is None for row in rows):
        sys.exit(FAILED)
