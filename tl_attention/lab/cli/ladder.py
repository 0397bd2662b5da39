"""This module measures the steps of a ladder beside each other, and shows a record of them with what each changed.

Beside them stand the figures of the text that climbed the ladder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tl_attention import shipped
from tl_attention.errors import InputError
from tl_attention.lab.cli.command import FAILED
from tl_attention.lab.cli.measure import GOOD, record_path, recording
from tl_attention.lab.cli.options import Decorator, card_for, say_not_launched

if TYPE_CHECKING:
    from tl_attention.lab.files.ladder_file import Ladder
    from tl_attention.lab.measure.records import Row


def ladder_option(help: str) -> Decorator:
    """Returns the decorator that gives a command `--ladder`, the name of one that ships or a file, with this help."""
    return click.option(
        "--ladder",
        metavar="NAME",
        help=f"{help}: its name, such as worklog, or a file in the form of results/ladder-*.yaml",
    )


def climb(name: str, rounds: int | None, output: Path | None) -> None:
    """Measures the steps of a ladder, appends the rows to a file and shows them. Exits with 1 if one failed.

    Without a GPU the steps are compiled, and their numbers are checked on the CPU.
    """
    from tl_attention.lab.files.ladder_file import load_ladder

    found = load_ladder(name)
    path, on = record_path(output, f"ladder-{found.name}"), card_for(None)
    say_not_launched(on)
    from tl_attention.lab.measure import bench

    with recording(path) as (append, progress):
        rows = bench.climb(found, on, append, progress, rounds=rounds or bench.LADDER_ROUNDS)
    _show(found, rows, path)
    if not all(row.status in GOOD for row in rows):
        sys.exit(FAILED)


def show_record(name: str, records: Sequence[Path]) -> None:
    """Shows the rows of a ladder in these files, or in the record that ships where there is none."""
    from tl_attention.lab.files.ladder_file import load_ladder, record_name
    from tl_attention.lab.measure.records import read_rows
    from tl_attention.lab.show.ladder import by_name

    found = load_ladder(name)
    for path in records or [shipped.folder("results") / record_name(found.name)]:
        rows = read_rows(path)
        if not by_name(rows, found):
            raise InputError(f"{path}: no row of {found.shape}, expected a record of the ladder {found.name}")
        _show(found, rows, path)


def _show(found: Ladder, rows: Sequence[Row], path: Path) -> None:
    from tl_attention.lab.show import ladder
    from tl_attention.lab.show.console import Output

    steps, output = ladder.by_name(rows, found), Output()
    output.fitting(ladder.table(found, steps))
    output.say("", *ladder.below(found, steps))
    if found.tiles:
        output.say("")
        output.fitting(ladder.tile_table(found, ladder.tiles_by_name(rows, found)))
    if found.choose:
        of_each, best = ladder.shown_record(rows)
        output.say("", f"the choice: {ladder.counted(of_each)}" if best else "the choice: needs a GPU")
        if best:
            output.fitting(ladder.best_of_tiles(best))
    output.say(f"{len(rows)} rows in {path}")
    if not any(row.median_ms for row in rows):
        output.say(f"no GPU, so nothing was timed: tl-attention report --ladder {found.name} shows a record that was")
