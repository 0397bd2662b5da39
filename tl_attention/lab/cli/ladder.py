"""`ladder` shows the steps of a ladder beside each other, and what each changed.

Beside them stand the figures of the text that climbed the ladder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tl_attention import shipped
from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import FAILED, command
from tl_attention.lab.cli.measure import GOOD, record_path, recording
from tl_attention.lab.cli.options import FILE, card_for, output_option, rounds_option, say_not_launched, seed_option

if TYPE_CHECKING:
    from tl_attention.lab.files.ladder_file import Ladder
    from tl_attention.lab.measure.records import Row


@command(
    examples={
        "ladder worklog --recorded": "the record that ships",
        "ladder worklog": "measure it here",
        "ladder": "the ladders that there are",
    }
)
@click.argument("name", required=False)
@click.option("--recorded", is_flag=True, help="show the record that ships, and measure nothing")
@click.option("--of", "record", type=FILE, help="show this record, and measure nothing")
@rounds_option(2, "how often every step is timed, in turn  [default: 9]")
@seed_option
@output_option
def ladder(
    name: str | None, recorded: bool, record: Path | None, rounds: int | None, seed: int | None, output: Path | None
) -> None:
    """Measure the steps of a ladder beside each other, and show what each step changed.

    A ladder retells how a text tuned its kernel, a schedule for each step. NAME is one of them, or a file in the form of
    results/ladder-*.yaml; without it the command lists them. Without a GPU the steps are compiled, and their numbers are
    checked on the CPU.
    """
    from tl_attention.lab.files.ladder_file import ladder_names, load_ladder, record_name

    if name is None:
        if recorded or record or rounds or output or seed is not None:
            raise InputError(
                f"ladder: no NAME beside the options, expected one of {', '.join(ladder_names())}, or a file"
            )
        for known in ladder_names():
            found = load_ladder(known)
            click.echo(printable(f"{known:16} {len(found.steps):2} steps: {found.title}"))
            click.echo(printable(f"{'':16} {found.source}"))
        return
    if recorded and record:
        raise InputError("--of shows a record, and --recorded the one that ships: expected one of them")
    found = load_ladder(name)
    if recorded or record:
        from tl_attention.lab.measure.records import read_rows
        from tl_attention.lab.show.ladder import by_name

        path = record or shipped.folder("results") / record_name(found.name)
        rows = read_rows(path)
        if not by_name(rows, found):
            raise InputError(f"{path}: no row of {found.shape}, expected a record of the ladder {found.name}")
    else:
        path, on = record_path(output, f"ladder-{found.name}"), card_for(None)
        say_not_launched(on)
        from tl_attention.lab.measure import bench

        with recording(path) as (append, progress):
            rows = bench.climb(found, on, append, progress, rounds=rounds or bench.LADDER_ROUNDS, seed=seed)
    _show(found, rows, path)
    if not all(row.status in GOOD for row in rows):
        sys.exit(FAILED)


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
        of_each, best = ladder.of_record(rows)
        output.say("", f"the choice: {ladder.counted(of_each)}" if best else "the choice: needs a GPU")
        if best:
            output.fitting(ladder.best_of_tiles(best))
    output.say(f"{len(rows)} rows in {path}")
    if not any(row.median_ms for row in rows):
        output.say(f"no GPU, so nothing was timed: tl-attention ladder {found.name} --recorded shows a record that was")
