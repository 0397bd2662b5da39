"""`compare`: the operator's benchmark, many problems in one process, each beside its peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click

from tl_attention import shipped
from tl_attention.cli.errors import say
from tl_attention.cli.measure import FAILED, RUNS, stamp
from tl_attention.cli.problem import MOST_ROUNDS
from tl_attention.cli.schedules import resolve_all, texts_of
from tl_attention.errors import InputError, printable


@click.command()
@click.argument("cells", required=False, type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="GLOB", help="cells of these names, such as 'd64-*' or '*-causal'")
@click.option(
    "--with", "others", multiple=True, metavar="SCHEDULE", help="this one too, where it is meant for head_dim"
)
@click.option("--rounds", type=click.IntRange(2, MOST_ROUNDS), help="of samples  [default: 15]")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="of the inputs  [default: fresh, recorded]")
@click.option("--output", type=click.Path(path_type=Path), help="JSON lines  [default: a new file in runs/]")
@click.option("--list", "listed", is_flag=True, help="the cells and what they compare, and nothing else")
def compare(
    cells: Path | None,
    only: tuple[str, ...],
    others: tuple[str, ...],
    rounds: int | None,
    seed: int | None,
    output: Path | None,
    listed: bool,
) -> None:
    """Time what attention() takes beside its peers, in each cell of a file (results/cells.yaml by default).

    Entries of a cell are sampled in turn: medians of paired ratios. The first peer is entered twice, which shows the
    repeatability. Both --only and --with may be given several times.
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
