"""`ladder`: the steps of a ladder beside each other, what each changed, and the figures of the text that climbed it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tl_attention import shipped
from tl_attention.cli.arch import card_for, say_not_launched
from tl_attention.cli.command import command
from tl_attention.cli.errors import say
from tl_attention.cli.measure import FAILED, GOOD, RUNS, stamp
from tl_attention.cli.problem import MOST_ROUNDS, seed_option
from tl_attention.errors import InputError, printable

if TYPE_CHECKING:
    from tl_attention.files.ladder_file import Ladder
    from tl_attention.measure.records import Row


@command(
    examples={
        "ladder worklog --recorded": "the record that ships",
        "ladder worklog": "measure it here",
        "ladder": "the ladders that there are",
    }
)
@click.argument("name", required=False)
@click.option("--recorded", is_flag=True, help="show the record that ships, and measure nothing")
@click.option("--of", "record", type=click.Path(path_type=Path), help="show this record, and measure nothing")
@click.option(
    "--rounds", type=click.IntRange(2, MOST_ROUNDS), help="how often every step is timed, in turn  [default: 9]"
)
@seed_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="the file that results are added to, as JSON lines  [default: a new file in runs/]",
)
def ladder(
    name: str | None, recorded: bool, record: Path | None, rounds: int | None, seed: int | None, output: Path | None
) -> None:
    """Measure the steps of a ladder beside each other, and show what each step changed.

    A ladder retells how a text tuned its kernel, a schedule for each step. NAME is one of them, or a file in the form of
    results/ladder-*.yaml; without it the command lists them. Without a GPU the steps are compiled, and their numbers are
    checked on the CPU.
    """
    from tl_attention.files.ladder_file import ladder_names, load_ladder, record_name

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
        from tl_attention.measure.records import read_rows
        from tl_attention.show.ladder import by_name

        path = record or shipped.folder("results") / record_name(found.name)
        rows = read_rows(path)
        if not by_name(rows, found):
            raise InputError(f"{path}: no row of {found.shape}, expected a record of the ladder {found.name}")
    else:
        path = output or RUNS / f"ladder-{found.name}-{stamp()}.jsonl"
        rows = _measured(found, path, rounds, seed)
    _show(found, rows, path)
    if not all(row.status in GOOD for row in rows):
        sys.exit(FAILED)


def _measured(found: Ladder, path: Path, rounds: int | None, seed: int | None) -> list[Row]:
    on = card_for(None)
    say_not_launched(on)
    from tl_attention.measure import ladder
    from tl_attention.measure.pool import CallFailed
    from tl_attention.measure.records import ResultsFile
    from tl_attention.show.console import ProgressBar

    with ResultsFile(path) as results:
        try:
            with ProgressBar() as progress:
                rows = ladder.measure(found, on, results.append, progress, rounds=rounds or ladder.ROUNDS, seed=seed)
        except CallFailed as failed:
            say(f"the machine failed, not a schedule: {failed}; {results.written} rows are in {results.path}")
            sys.exit(FAILED)
    return rows


def _show(found: Ladder, rows: Sequence[Row], path: Path) -> None:
    from tl_attention.show import configurations, ladder
    from tl_attention.show.console import Output, show_columns

    steps, output = ladder.by_name(rows, found), Output()
    show_columns(ladder.title(found, steps), ladder.headings(found), ladder.lines(found, steps), ladder.PRIORITY)
    output.say("", *ladder.below(found, steps))
    if found.tiles:
        lines = ladder.tile_lines(found, ladder.tiles_by_name(rows, found))
        output.say("")
        show_columns("tiles, compiled alone", ladder.TILE_HEADINGS, lines, range(len(ladder.TILE_HEADINGS)))
    if found.choose:
        of_each, best = configurations.of_record(rows)
        names = configurations.HEADINGS
        output.say("", f"the choice: {configurations.counted(of_each)}" if best else "the choice: needs a GPU")
        if best:
            show_columns("the best of each tile", names, configurations.best_of_tiles(best), range(len(names)))
    output.say(f"{len(rows)} rows in {path}")
    if not any(row.median_ms for row in rows):
        output.say(f"no GPU, so nothing was timed: tl-attention ladder {found.name} --recorded shows a record that was")
