"""Draws the pictures of docs/pictures/ from the records in results/, as SVG and as PNG.

    python tools/pictures.py [--only ladder-rtx5090] [--only lengths]

What has no record yet is left out, with a word. A test holds the pictures to the records, and their text to not overlap.
"""

from __future__ import annotations

from pathlib import Path

import click
from pictures_of import errors, grid, ladder, lengths, predictions
from pictures_of.picture import Picture
from pictures_of.sheet import save

from tl_attention.cli.errors import fail
from tl_attention.errors import InputError

ROOT = Path(__file__).parents[1]
RESULTS, FOLDER = ROOT / "results", ROOT / "docs/pictures"
PICTURES = {
    picture.name: picture
    for picture in (*ladder.PICTURES, lengths.PICTURE, *grid.PICTURES, predictions.PICTURE, errors.PICTURE)
}


def write(picture: Picture, results: Path, folder: Path) -> str:
    """Draws one picture, and says what was written or which record it waits for."""
    if missing := picture.missing(results):
        return f"{picture.name}: left out, there is no {', '.join(missing)} in {results.name}/ yet"
    paths = save(picture.drawn(results), folder, picture.name)
    return "\n".join(f"{path.relative_to(folder.parents[1])}: {path.stat().st_size / 1024:.0f} KiB" for path in paths)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(PICTURES)), help="[default: all]")
def main(only: tuple[str, ...]) -> None:
    """Draw the pictures of docs/pictures/ from the records in results/."""
    FOLDER.mkdir(exist_ok=True)
    try:
        for name in only or PICTURES:
            click.echo(write(PICTURES[name], RESULTS, FOLDER))
    except InputError as error:
        fail(str(error))


if __name__ == "__main__":
    main()
