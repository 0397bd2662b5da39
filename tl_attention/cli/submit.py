"""`submit`: pack a schedule into one file for the leaderboard, check such a file, and run files under its contract."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from tl_attention.cli.errors import naming
from tl_attention.cli.measure import FAILED, RUNS
from tl_attention.errors import InputError, printable
from tl_attention.files.catalogue import SUFFIXES, path_of
from tl_attention.files.named import resolve

DEFAULT_OUTPUT = Path("leaderboard_submit.py")


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"the packed file  [default: {DEFAULT_OUTPUT}]; with --evaluate the JSON lines  [default: a new file in {RUNS}/]",
)
@click.option("--check", is_flag=True, help="pack the schedule that a submission carries again, and compare")
@click.option("--evaluate", is_flag=True, help="run schedules or submission files as the leaderboard does")
@click.option("--against", type=click.Choice(["cudnn"]), help="with --evaluate: run this baseline too")
@click.option(
    "--lines",
    type=click.Path(path_type=Path),
    help="with --evaluate: a file of test lines  [default: the leaderboard's three]",
)
@click.option("--mode", type=click.Choice(["test", "benchmark"]), help="with --evaluate  [default: benchmark]")
@click.option(
    "--protocol", type=click.Choice(["class", "popcorn"]), help="with --evaluate: whose output lines  [default: class]"
)
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="with --evaluate; cpu tries the harness only  [default: cuda]"
)
def submit(files: tuple[str, ...], output: Path | None, check: bool, evaluate: bool, **options: Any) -> None:
    """Pack a schedule for the leaderboard, --check a packed file, or --evaluate schedules and files under its contract."""
    if check and evaluate:
        raise InputError("--check packs again and --evaluate runs: expected one of them")
    if evaluate:
        from tl_attention.cli.evaluate import evaluate_files

        evaluate_files(list(dict.fromkeys(files)), output, submission_of=submission_of, **options)
        return
    stray = next((name for name, value in options.items() if value is not None), None)
    if stray:
        raise InputError(f"--{stray} says how to evaluate: expected it with --evaluate")
    if len(files) > 1:
        raise InputError(f"{len(files)} files, expected one")
    if not check:
        packed = pack(files[0], output or DEFAULT_OUTPUT)
        click.echo(f"wrote {printable(str(packed))}, {packed.stat().st_size:,} bytes")
    elif not same_as_packed_again(Path(files[0])):
        sys.exit(FAILED)


def pack(text: str, output: Path) -> Path:
    """Write the submission of a schedule, given by name or file."""
    from tl_attention.leaderboard import submission

    # Any other file may be a schedule, whatever its name: `resolve` says what it is not.
    if is_submission(text) and text.endswith(".py"):
        raise InputError(f"{text}: expected a schedule's name or file; a submission file is run with --evaluate")
    named = resolve(text)
    if named.file is None:
        raise InputError(f"{text}: no name for the submission, expected a schedule's name or file")
    named.refuse_unmeant(submission.VARIANT.head_dim)
    with naming(named):
        submission.write(named.name, named.schedule, output)
    return output


def same_as_packed_again(path: Path) -> bool:
    """Say whether a file is what its schedule packs to."""
    from tl_attention.leaderboard.submission import check

    found = check(path)
    click.echo(f"cubin carried     {found.carried}\ncubin made again  {found.made_again}")
    cubins = "the cubins are the same" if found.carried == found.made_again else "the cubins differ"
    text = f"the text differs from line {found.line} on" if found.line else "and so is every other byte"
    click.echo(f"{cubins}, {text}")
    return found.carried == found.made_again and not found.line


def submission_of(text: str, folder: Path) -> Path:
    """The file itself, or the one that a schedule is packed into, in a new folder."""
    if not is_submission(text):
        folder.mkdir()
        return pack(text, folder / f"{Path(text).stem}.py")
    path = Path(text)
    try:
        path.open("rb").close()
    except OSError as error:
        raise InputError(f"{path}: cannot be read, expected a submission file: {error.strerror}") from None
    return path


def is_submission(text: str) -> bool:
    """Whether it is a file of its own, not what a schedule is called."""
    if text.endswith(SUFFIXES) or path_of(text):
        return False
    return text.endswith(".py") or os.path.isfile(text)
