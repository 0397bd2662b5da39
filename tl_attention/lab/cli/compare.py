"""`compare` is the operator's benchmark: it times many problems in one process, each beside its peers."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path

import click

from tl_attention import shipped
from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import FAILED, command
from tl_attention.lab.cli.measure import record_path, recording
from tl_attention.lab.cli.options import FILE, output_option, rounds_option, seed_option
from tl_attention.lab.cli.schedules import resolve_all, texts_of


@command(
    examples={
        "compare --only 'd64-*'": "the cells of head_dim 64",
        "compare --with mine.yaml": "a file of yours in each cell too",
        "compare --list": "the cells, without measuring them",
    }
)
@click.argument("cells", required=False, type=FILE)
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
@rounds_option(2, "how often every entry is timed, in turn  [default: 15]")
@seed_option
@output_option
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
    from tl_attention.lab.measure.cell import load_cells

    file = cells or shipped.folder("results") / "cells.yaml"
    found = load_cells(file)
    chosen = [cell for cell in found if not only or any(fnmatchcase(cell.name, glob) for glob in only)]
    if not chosen:
        names = ", ".join(cell.name for cell in found)
        raise InputError(f"--only: {' '.join(only)[:80]!r} is no cell of {file}, expected some of {names}")
    named = resolve_all(texts_of(others)) if others else []
    if listed:
        for cell in chosen:
            peers = ", ".join(peer if bar is None else f"{peer} {bar:g}" for peer, bar in cell.peers.items())
            click.echo(printable(f"{cell.name:24} {cell.shape}: {peers}"))
        return
    from tl_attention.lab.measure.cell_records import CellRow
    from tl_attention.lab.measure.cells import measure
    from tl_attention.lab.measure.session import ROUNDS_AGAINST
    from tl_attention.lab.show.cells import summary
    from tl_attention.lab.show.console import Output, counted, show_cells

    path = record_path(output, "compare")
    with recording(path, what="cells") as (append, progress):

        def record(row: CellRow) -> None:
            append(row)
            progress.say(summary(row))

        rows = measure(chosen, record, progress, rounds=rounds or ROUNDS_AGAINST, others=named, seed=seed)
    show_cells(rows)
    Output().say(f"{counted(len(rows), 'cell')} in {path}")
    if any(row.ours.median_ms is None for row in rows):
        sys.exit(FAILED)
