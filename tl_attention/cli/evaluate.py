"""The evaluating half of `submit`: it runs submission files under the leaderboard's contract and shows the rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from tl_attention.cli.measure import RUNS, stamp
from tl_attention.errors import printable
from tl_attention.leaderboard import contract, table
from tl_attention.leaderboard import evaluate as harness
from tl_attention.leaderboard.results import Evaluation
from tl_attention.measure.records import ResultsFile
from tl_attention.show.console import Output, counted, show_columns

BASELINES = {"cudnn": Path(harness.__file__).with_name("baseline_cudnn.py")}


def evaluate_files(
    files: Sequence[str],
    submissions: Sequence[Path],
    output: Path | None,
    *,
    against: str | None,
    lines: Path | None,
    mode: str | None,
    protocol: str | None,
    device: str | None,
) -> bool:
    """Evaluate the submissions that were given as `files`, record them and print their rows.

    Returns whether each of them passes at both tolerances; the baseline's verdict is its own.
    """
    tests = contract.read_test_lines(lines) if lines else contract.RANKED_LINES
    # All are read before the first of them runs.
    sources = [(name, path.name, path.read_bytes()) for name, path in zip(distinct_names(files), submissions)]
    if against:
        sources.append((against, BASELINES[against].name, BASELINES[against].read_bytes()))
    evaluations: list[tuple[str, Evaluation]] = []
    with (
        ResultsFile(output or RUNS / f"evaluate-{stamp()}.jsonl") as record,
        harness.judging(mode or "benchmark", device or "cuda") as judge,
    ):
        for name, file, source in sources:
            found = judge.evaluate(file, source, tests)
            record.append_json(json.dumps({"name": name} | found.to_json()), of=name)
            evaluations.append((name, found))
            if len(sources) > 1:
                click.echo(f"# {printable(name)}")
            for line in table.class_lines(found) if protocol != "popcorn" else table.popcorn_lines(found):
                click.echo(line)
            if found.parent_import.status != "pass":
                click.echo(f"# import: {found.parent_import.status}: {found.parent_import.reason}")
            if found.accepted and not found.tight:
                click.echo("# accepted, but not within 1e-3")
    shown = table.lines(evaluations, against)
    show_columns(table.title(evaluations[0][1]), table.headings(against), shown, table.PRIORITY)
    Output().say(f"{counted(len(evaluations), 'evaluation')} in {record.path}")
    return all(found.tight for _, found in evaluations[: len(files)])


def distinct_names(files: Sequence[str]) -> list[str]:
    """The files' names without folder and suffix, where that is one file's."""
    stems = [Path(text).stem for text in files]
    return [stem if stems.count(stem) == 1 else text for stem, text in zip(stems, files)]
