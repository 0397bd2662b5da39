"""`submit`: pack a schedule into one file for the leaderboard, and run such files under its contract."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from tl_attention.cli.errors import fail, naming
from tl_attention.cli.measure import FAILED, RUNS
from tl_attention.errors import InputError, printable
from tl_attention.files.catalogue import SUFFIXES, path_of
from tl_attention.files.named import resolve

DEFAULT_OUTPUT = Path("leaderboard_submit.py")
BASELINES = ("cudnn",)


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--embed",
    type=click.Choice(["all", "tilelang", "cuda"]),
    default="all",
    show_default=True,
    help="what a packed schedule carries: the TileLang program, the CUDA generated from it, or both and "
    "machine code, of which the first that works runs",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"of the packed file  [default: {DEFAULT_OUTPUT}]; with --evaluate the JSON lines  [default: a new "
    f"file in {RUNS}/]",
)
@click.option("--evaluate", is_flag=True, help="run schedules or submission files as the leaderboard does")
@click.option("--against", type=click.Choice(BASELINES), help="with --evaluate: run this baseline too")
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
def submit(files: tuple[str, ...], embed: str, output: Path | None, evaluate: bool, **options: Any) -> None:
    """Pack a schedule for the leaderboard, or --evaluate schedules and submission files under its contract."""
    if evaluate:
        from tl_attention.cli.evaluate import evaluate_files

        given = list(dict.fromkeys(files))
        # All are packed, and so found to be right, before the first is run and a file for its results is made.
        with tempfile.TemporaryDirectory(prefix="submit-") as folder:
            submissions = [_submission(text, Path(folder, str(number)), embed) for number, text in enumerate(given)]
            passed = evaluate_files(given, submissions, output, **options)
        sys.exit(0 if passed else FAILED)
    stray = next((name for name, value in options.items() if value is not None), None)
    if stray:
        raise InputError(f"--{stray} says how to evaluate: expected it with --evaluate")
    if len(files) > 1:
        raise InputError(f"{len(files)} schedules, expected one: each submission is a file of its own")
    packed = _pack(files[0], output or DEFAULT_OUTPUT, embed)
    click.echo(f"wrote {printable(str(packed))}, {packed.stat().st_size:,} bytes, {embed}")


def _pack(text: str, output: Path, embed: str) -> Path:
    """Write the schedule's submission. A rule of the servers that it would break is the user's to know, in one line."""
    from tl_attention.leaderboard import submission

    # Any other file may be a schedule, whatever its name: `resolve` says what it is not.
    if _is_submission(text) and text.endswith(".py"):
        raise InputError(f"{text}: expected a schedule's name or file; a submission file is run with --evaluate")
    named = resolve(text)
    if named.file is None:
        raise InputError(f"{text}: no name for the submission, expected a schedule's name or file")
    named.refuse_unmeant(submission.VARIANT.head_dim)
    with naming(named):
        broken = submission.write(named.name, named.schedule, output, embed)  # type: ignore[arg-type]
    if broken:
        fail(f"{text}: not written, the submission would break {len(broken)} rules: {' '.join(broken)}")
    return output


def _submission(text: str, folder: Path, embed: str) -> Path:
    """The file itself, or the one that a schedule is packed into."""
    if _is_submission(text):
        path = Path(text)
        try:
            path.open("rb").close()
        except OSError as error:
            raise InputError(f"{path}: cannot be read, expected a submission file: {error.strerror}") from None
        return path
    folder.mkdir()
    return _pack(text, folder / f"{Path(text).stem}.py", embed)


def _is_submission(text: str) -> bool:
    """Whether it is a file of its own, not what a schedule is called."""
    if text.endswith(SUFFIXES) or path_of(text):
        return False
    return text.endswith(".py") or os.path.isfile(text)
