"""`submit`: pack a schedule into one file for the leaderboard, check such a file, and run files under its contract."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from tl_attention.cli.command import command
from tl_attention.cli.errors import naming
from tl_attention.cli.measure import FAILED, RUNS
from tl_attention.errors import InputError, printable
from tl_attention.files.catalogue import SUFFIXES, path_of
from tl_attention.files.named import resolve

DEFAULT_OUTPUT = Path("leaderboard_submit.py")
FILE = click.Path(path_type=Path)


@command(
    examples={
        "submit best": f"pack it into {DEFAULT_OUTPUT}",
        f"submit --check {DEFAULT_OUTPUT}": "pack it again, and compare",
        "submit --evaluate best mine.yaml": "run both as the leaderboard does",
    }
)
@click.argument("files", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=FILE,
    help=f"the packed file  [default: {DEFAULT_OUTPUT}]; with --evaluate the JSON lines  [default: a new one in {RUNS}/]",
)
@click.option(
    "--check", is_flag=True, help="pack again the schedule that a packed file carries, and compare the two files"
)
@click.option("--evaluate", is_flag=True, help="run schedules or submission files as the leaderboard does")
@click.option("--against", type=click.Choice(["cudnn"]), help="with --evaluate: run this baseline too")
@click.option(
    "--lines", type=FILE, help="with --evaluate: the file of test lines to run  [default: the leaderboard's three]"
)
@click.option(
    "--mode",
    type=click.Choice(["test", "benchmark"]),
    help="with --evaluate: whether outputs are checked only, or timed too  [default: benchmark]",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="with --evaluate: where files run; cpu tries the harness only  [default: cuda]",
)
def submit(files: tuple[str, ...], output: Path | None, check: bool, evaluate: bool, **options: Any) -> None:
    """Pack a schedule into one file for the leaderboard, check such a file, or run it under the leaderboard's rules.

    FILES is a schedule to pack. With --check it is a packed file. With --evaluate it is any number of schedules and
    submission files.
    """
    stray = next((name for name, value in options.items() if value is not None), None)
    if check and evaluate:
        raise InputError("--check packs again and --evaluate runs: expected one of them")
    if stray and not evaluate:
        raise InputError(f"--{stray} says how to evaluate: expected it with --evaluate")
    if len(files) > 1 and not evaluate:
        raise InputError(f"{len(files)} files, expected one")
    if evaluate:
        passed = _evaluate(list(dict.fromkeys(files)), output, **options)
    elif check:
        passed = _check(Path(files[0]))
    else:
        packed, passed = _pack(files[0], output or DEFAULT_OUTPUT), True
        click.echo(f"wrote {printable(str(packed))}, {packed.stat().st_size:,} bytes")
    if not passed:
        sys.exit(FAILED)


def _pack(text: str, output: Path) -> Path:
    """Write the submission of a schedule, given by name or file."""
    # Any other file may be a schedule, whatever its name: `resolve` says what it is not.
    if _is_submission(text) and text.endswith(".py"):
        raise InputError(f"{text}: expected a schedule's name or file; a submission file is run with --evaluate")
    named = resolve(text)
    if named.file is None:
        raise InputError(f"{text}: no name for the submission, expected a schedule's name or file")
    submission = _submission()
    named.refuse_unmeant(submission.VARIANT.head_dim)
    with naming(named):
        submission.write(named.name, named.schedule, output)
    return output


def _check(path: Path) -> bool:
    """Say whether a file is what its schedule packs to."""
    carried, made_again, line = _submission().check(path)
    cubins = "the cubins are the same" if carried == made_again else "the cubins differ"
    text = f"the text differs from line {line} on" if line else "and so is every other byte"
    click.echo(f"cubin carried     {carried}\ncubin made again  {made_again}\n{cubins}, {text}")
    return carried == made_again and not line


def _submission() -> ModuleType:
    """What packs. Raises InputError where something that it needs is missing."""
    from tl_attention.leaderboard.needed import check_all_there

    check_all_there()
    from tl_attention.leaderboard import submission

    return submission


def _evaluate(files: list[str], output: Path | None, **options: Any) -> bool:
    """Run submissions, and those that schedules are packed into first; whether all of them pass."""
    from tl_attention.cli.evaluate import evaluate_files

    with tempfile.TemporaryDirectory(prefix="submit-") as folder:
        # All are packed, and so found to be right, before the first is run and a file for its results is made.
        paths = [Path(text) for text in files]
        for number, text in enumerate(files):
            if not _is_submission(text):
                paths[number] = Path(folder, str(number), f"{Path(text).stem}.py")
                paths[number].parent.mkdir()
                _pack(text, paths[number])
        return evaluate_files(files, paths, output, **options)


def _is_submission(text: str) -> bool:
    """Whether it is a file of its own, not what a schedule is called."""
    return not text.endswith(SUFFIXES) and not path_of(text) and (text.endswith(".py") or os.path.isfile(text))
