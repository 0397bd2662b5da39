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
    paths: Sequence[Path],
    output: Path | None,
    *,
    against: str | None,
    lines: Path | None,
    mode: str | None,
    device: str | None,
) -> bool:
    """Evaluate the submissions that were given as `files`, record them and print their rows.

    Returns whether each of them passes at both tolerances; the baseline's verdict is its own.
    """
    tests = contract.read_test_lines(lines) if lines else contract.RANKED_LINES
    stems = [Path(text).stem for text in (*files, against or "")]
    names = [stem if stems.count(stem) == 1 else text for stem, text in zip(stems, files)]
    if against:
        names, paths = [*names, against], [*paths, BASELINES[against]]
    # All are read before the first of them runs.
    sources = [contract.read_submission(path) for path in paths]
    found: list[tuple[str, Evaluation]] = []
    with (
        ResultsFile(output or RUNS / f"evaluate-{stamp()}.jsonl") as record,
        harness.judging(mode or "benchmark", device or "cuda") as judge,
    ):
        for name, path, source in zip(names, paths, sources):
            found.append((name, judge.evaluate(path.name, source, tests)))
            record.append_json(json.dumps({"name": name} | found[-1][1].to_json()), of=name)
            click.echo(f"# {printable(name)}\n" * (len(names) > 1) + "\n".join(table.class_lines(found[-1][1])))
    show_columns(table.title(found[0][1]), table.headings(against), table.lines(found, against), table.PRIORITY)
    Output().say(f"{counted(len(found), 'evaluation')} in {record.path}")
    return all(evaluation.tight for _, evaluation in found[: len(files)])
