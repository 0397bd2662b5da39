"""`compare` is the operator's benchmark: it times many problems in one process, each beside its peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tl_attention import shipped
from tl_attention.errors import InputError
from tl_attention.lab.cli.command import FAILED, command
from tl_attention.lab.cli.measure import record_path, recording
from tl_attention.lab.cli.options import FILE, output_option, rounds_option
from tl_attention.lab.cli.schedules import resolve_all, texts_of
from tl_attention.schedule.key_words import meant

if TYPE_CHECKING:
    from tl_attention.lab.measure.cell import Cell


@command(
    examples={
        "compare --only 'd64-*'": "the cells of head_dim 64",
        "compare --with mine.yaml": "a file of yours in each cell too",
        "compare results/decode.yaml": "the cells of another file",
    },
    gone={
        "--list": "is gone: the cells stand in the file, by default results/cells.yaml",
        "--seed": "is gone: the seed of each cell is in its row",
    },
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
@rounds_option("how often every entry is timed, in turn  [default: 15]")
@output_option
def compare(
    cells: Path | None, only: tuple[str, ...], others: tuple[str, ...], rounds: int | None, output: Path | None
) -> None:
    """Time attention() beside its peers in many problems, the cells of a file.

    Without CELLS the file is results/cells.yaml. The entries of a cell are timed in turn, and a ratio is the median of
    the rounds' ratios. The first peer is entered twice, which shows how well a time repeats. --only and --with may be
    given several times.
    """
    from tl_attention.lab.measure.cell import load_cells

    file = cells or shipped.folder("results") / "cells.yaml"
    found = load_cells(file)
    chosen = [cell for cell in found if not only or any(fnmatchcase(cell.name, glob) for glob in only)]
    if not chosen:
        raise InputError(f"--only: {' '.join(only)[:80]!r} is no cell of {file}{_meant(only[0], found)}")
    named = resolve_all(texts_of(others)) if others else []
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

        rows = measure(chosen, record, progress, rounds=rounds or ROUNDS_AGAINST, others=named)
    show_cells(rows)
    Output().say(f"{counted(len(rows), 'cell')} in {path}")
    if any(row.ours.median_ms is None for row in rows):
        sys.exit(FAILED)


def _meant(text: str, cells: Sequence[Cell]) -> str:
    """Says which glob of cells or which cell a text may mean, or else which groups of cells there are."""
    for glob in (f"{text}-*", f"{text}*") if text else ():
        if any(fnmatchcase(cell.name, glob) for cell in cells):
            return f": did you mean '{glob}'?"
    groups = ", ".join(repr(f"{group}-*") for group in dict.fromkeys(cell.group for cell in cells))
    return meant(text, [cell.name for cell in cells]) or f", expected some of {groups}"
