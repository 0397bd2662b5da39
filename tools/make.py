"""Makes every page and picture that comes from records and schedules.

    python tools/make.py [docs/results.md] [docs/pictures/lengths.svg]

Without names the script makes all files. A test compares the files with what is made anew.
"""

from __future__ import annotations

from functools import partial

import click
from pages import (
    backward_rules,
    cards,
    cells,
    defaults,
    experiments,
    ladders,
    model,
    pytorch,
    results,
    schedules,
    training,
    where_time_goes,
)
from pages.made import RESULTS, ROOT, Make
from pictures import errors, grid, iterations, ladder, lengths, predictions, timelines
from pictures import speed as of_speed
from pictures import training as of_training
from pictures.sheet import drawn, svg_of

from tl_attention.errors import InputError
from tl_attention.lab.cli.command import fail

FOLDER = "docs/pictures"
PAGES = (backward_rules, cards, defaults, experiments, ladders, model, pytorch, results, schedules, where_time_goes)
PICTURES = {
    f"{FOLDER}/{name}.svg": draw
    for module in (ladder, lengths, grid, predictions, errors)
    for name, draw in module.PICTURES.items()
} | {
    cells.PICTURE: lambda results: of_speed.drawn(cells.all_cards()),
    training.PICTURE: lambda results: of_training.drawn(training.read()),
}
TEXTS: dict[str, Make] = {
    **{path: make for page in PAGES for path, make in page.MADE.items()},
    **{f"{FOLDER}/iterations-{name}.svg": partial(iterations.svg, name) for name in iterations.DRAWN},
    **timelines.MADE,
}


def text(path: str) -> str:
    """Makes the text of one file."""
    return TEXTS[path]() if path in TEXTS else svg_of(drawn(PICTURES[path], RESULTS))


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*TEXTS, *PICTURES]), metavar="[FILE]...")
def main(names: tuple[str, ...]) -> None:
    """Make pages and pictures from records and schedules: all, or these FILEs."""
    (ROOT / FOLDER).mkdir(exist_ok=True)
    try:
        for name in names or [*TEXTS, *PICTURES]:
            (ROOT / name).write_text(text(name), "utf-8")
            click.echo(name)
    except InputError as error:
        fail(str(error))


if __name__ == "__main__":
    main()
