"""`submit` packs a schedule into one file for the leaderboard, checks such a file, and runs files.

They run under the leaderboard's contract.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import FAILED, command, naming
from tl_attention.lab.cli.measure import RUNS, record_path
from tl_attention.lab.cli.options import FILE
from tl_attention.lab.cli.outputs import OutputFile
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import RECORD, SUBMISSION
from tl_attention.lab.measure.device import visible_gpus
from tl_attention.schedule.files.catalogue import SUFFIXES, path_of
from tl_attention.schedule.files.named import resolve_forward

DEFAULT_OUTPUT = Path("leaderboard_submit.py")
BASELINES = {"cudnn": Path(__file__).parents[1] / "leaderboard" / "baseline_cudnn.py"}


@command(
    examples={
        "submit best": f"pack it into {DEFAULT_OUTPUT}",
        f"submit --check {DEFAULT_OUTPUT}": "pack it again, and compare",
        "submit --evaluate best mine.yaml": "run both as the leaderboard does",
    },
    gone={"--mode": "is gone: outputs are checked and timed"},
)
@click.argument("files", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=OutputFile(lambda path, options: RECORD if options["evaluate"] else SUBMISSION),
    help=f"the packed file  [default: {DEFAULT_OUTPUT}]; with --evaluate the JSON lines  [default: a new one in {RUNS}/]",
)
@click.option(
    "--check", is_flag=True, help="pack again the schedule that a packed file carries, and compare the two files"
)
@click.option("--evaluate", is_flag=True, help="run schedules or submission files as the leaderboard does")
@click.option("--against", type=click.Choice(list(BASELINES)), help="with --evaluate: run this baseline too")
@click.option(
    "--lines", type=FILE, help="with --evaluate: the file of test lines to run  [default: the leaderboard's three]"
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="with --evaluate: where files run; cpu tries the harness only, with a file that computes there  [default: cuda]",
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
        output = output or DEFAULT_OUTPUT
        user_file.check_writable(output, SUBMISSION)
        text, passed = _packed(files[0]), True
        user_file.write(output, text, SUBMISSION)
        click.echo(f"wrote {printable(str(output))}, {len(text.encode()):,} bytes")
    if not passed:
        sys.exit(FAILED)


def _packed(text: str) -> str:
    """Packs a schedule, given by name or file, and returns the submission's text."""
    # Any other file may be a schedule, whatever its name: `resolve` says what it is not.
    if _is_submission(text) and text.endswith(".py"):
        raise InputError(f"{text}: expected a schedule's name or file; a submission file is run with --evaluate")
    named = resolve_forward(text)
    if not named.sources:
        raise InputError(f"{text}: no name for the submission, expected a schedule's name or file")
    from tl_attention.lab.leaderboard import submission

    named.refuse_unmeant(submission.VARIANT.head_dim)
    with naming(named):
        return submission.pack(named.name, named.schedule)


def _check(path: Path) -> bool:
    """Prints and returns whether a packed file is, byte for byte, what the schedule that it carries packs to now."""
    from tl_attention.lab.leaderboard import submission

    carried, made_again, line = submission.check(path)
    cubins = "the cubins are the same" if carried == made_again else "the cubins differ"
    text = f"the text differs from line {line} on" if line else "and so is every other byte"
    click.echo(f"cubin carried     {carried}\ncubin made again  {made_again}\n{cubins}, {text}")
    return carried == made_again and not line


def _evaluate(
    files: list[str], output: Path | None, *, against: str | None, lines: Path | None, device: str | None
) -> bool:
    """Runs submissions and packed schedules as the leaderboard does, records all, and says whether all pass."""
    from tl_attention.lab.leaderboard import contract, results
    from tl_attention.lab.leaderboard.evaluate import evaluate
    from tl_attention.lab.measure.results_file import ResultsFile
    from tl_attention.lab.show.console import Output, counted

    stems = [Path(text).stem for text in (*files, against or "")]
    names = [stem if stems.count(stem) == 1 else text for stem, text in zip(stems, files)]
    # All are packed and read, and so found to be right, before the first is run and a file for its results is made.
    read = {text: contract.read_submission(Path(text)) for text in files if _is_submission(text)}
    tests = contract.read_test_lines(lines) if lines else contract.RANKED_LINES
    _check_can_run(files, read, device or "cuda")
    sources = [
        (Path(text).name, read[text]) if text in read else (f"{Path(text).stem}.py", _packed(text).encode())
        for text in files
    ]
    if against:
        names.append(against)
        sources.append((BASELINES[against].name, contract.read_submission(BASELINES[against])))
    found: list[tuple[str, results.Evaluation]] = []
    record = ResultsFile(record_path(output, "evaluate"))
    for name, (file, source) in zip(names, sources):
        found.append((name, evaluate(file, source, tests, "benchmark", device or "cuda")))
        record.append_json(json.dumps({"name": name} | found[-1][1].to_json()), of=name)
        heading = f"# {printable(name)}\n" if len(names) > 1 else ""
        click.echo(heading + "\n".join(results.class_lines(found[-1][1])))
    shown = Output()
    shown.fitting(results.table(results.title(found[0][1]), found, against))
    shown.say(f"{counted(len(found), 'evaluation')} in {record.path}")
    return all(evaluation.tight for _, evaluation in found[: len(files)])


def _check_can_run(files: Sequence[str], read: Mapping[str, bytes], device: str) -> None:
    """Raises InputError unless the device is here and can run the files, of which `read` has the submissions' bytes."""
    from tl_attention.lab.leaderboard.contract import read_device_code

    if device == "cuda":
        if not visible_gpus():
            raise InputError("--evaluate: no GPU here, expected one; --device cpu tries the harness only")
        return
    for text in files:
        if text not in read or read_device_code(read[text]):
            what = "a packed schedule" if text in read else "a schedule"
            raise InputError(
                f"{text}: {what}, whose kernel needs a GPU, expected with --device cpu a submission file of yours that "
                "computes on the CPU"
            )


def _is_submission(text: str) -> bool:
    """Says whether a text ends in .py or is a file, and is neither a schedule's name nor a YAML file's."""
    return not text.endswith(SUFFIXES) and not path_of(text) and (text.endswith(".py") or os.path.isfile(text))
