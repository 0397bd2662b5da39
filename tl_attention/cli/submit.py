"""`submit`: pack a schedule into one file for the leaderboard, and run such files under its contract."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tl_attention.cli.errors import fail, naming
from tl_attention.cli.measure import FAILED, RUNS, stamp
from tl_attention.errors import InputError, printable
from tl_attention.files.catalogue import SUFFIXES, path_of
from tl_attention.files.named import resolve

DEFAULT_OUTPUT = Path("leaderboard_submit.py")
LEADERBOARD = Path(__file__).parents[1] / "leaderboard"
BASELINES = {"cudnn": LEADERBOARD / "baseline_cudnn.py"}


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
@click.option("--against", type=click.Choice(sorted(BASELINES)), help="with --evaluate: run this baseline too")
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
        _evaluate(list(dict.fromkeys(files)), embed, output, **options)
        return
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


def _evaluate(
    files: Sequence[str],
    embed: str,
    output: Path | None,
    *,
    against: str | None,
    lines: Path | None,
    mode: str | None,
    protocol: str | None,
    device: str | None,
) -> None:
    from tl_attention.leaderboard import contract, results, table
    from tl_attention.leaderboard.evaluate import evaluate
    from tl_attention.measure.records import ResultsFile

    tests = contract.read_test_lines(lines) if lines else contract.RANKED_LINES
    names = _told_apart(files)
    evaluations: list[tuple[str, results.Evaluation]] = []
    with tempfile.TemporaryDirectory(prefix="submit-") as folder:
        # All are packed, and so found to be right, before the first is run and a file for its results is made.
        submissions = [
            (name, _submission(text, Path(folder) / f"{number}", embed))
            for number, (name, text) in enumerate(zip(names, files, strict=True))
        ]
        if against:
            submissions.append((against, BASELINES[against]))
        with ResultsFile(output or RUNS / f"evaluate-{stamp()}.jsonl") as record:
            for name, path in submissions:
                found = evaluate(path, tests, mode=mode or "benchmark", device=device or "cuda")
                record.append_json(json.dumps({"name": name} | found.to_json()), of=name)
                evaluations.append((name, found))
                _print_lines(name, found, protocol or "class", of=len(submissions))

    from tl_attention.show.console import Output, counted, show_columns

    shown = table.lines(evaluations, against)
    show_columns(table.title(evaluations[0][1]), table.headings(against), shown, table.PRIORITY)
    Output().say(f"{counted(len(evaluations), 'evaluation')} in {record.path}")
    # The baseline is there to compare with; its own verdict is in the table.
    judged = [found for name, found in evaluations[: len(files)]]
    if not all(found.accepted and found.tight and not found.violations for found in judged):
        sys.exit(FAILED)


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


def _told_apart(files: Sequence[str]) -> list[str]:
    """A file's name without folder and suffix, where that is one file's."""
    stems = [Path(text).stem for text in files]
    return [stem if stems.count(stem) == 1 else text for stem, text in zip(stems, files)]


def _print_lines(name: str, found: Any, protocol: str, *, of: int) -> None:
    from tl_attention.leaderboard import results

    if of > 1:
        click.echo(f"# {printable(name)}")
    for line in (results.class_lines if protocol == "class" else results.popcorn_lines)(found):
        click.echo(line)
    for rule in found.violations:
        click.echo(printable(f"# breaks a rule: {rule}"))
    if found.parent_import.status != "pass":
        click.echo(f"# import: {found.parent_import.status}: {found.parent_import.reason}")
    if found.accepted and not found.tight:
        click.echo("# accepted, but not within 1e-3")
