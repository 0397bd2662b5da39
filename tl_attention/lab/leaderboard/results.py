"""This module holds the results of an evaluation, as a line of JSON for the record, and as tables and lines to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, quantiles, stdev
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from tl_attention.lab.files import json_text
from tl_attention.lab.leaderboard.contract import TestLine
from tl_attention.lab.leaderboard.timed import stop_reason
from tl_attention.lab.measure.records import Positive
from tl_attention.lab.show.table import Column, Table

TIMES = ("mean", "std", "err", "best", "worst")


@dataclass(frozen=True)
class Timing:
    """A timing holds the times of one test, their mean, spread and percentiles, and why timing stopped."""

    n: int  # belongs beside the mean: a cool card can stop after three runs and look 10 % faster
    mean_ms: Positive
    std_ms: float
    err_ms: float
    best_ms: Positive
    worst_ms: Positive
    median_ms: Positive
    p10_ms: Positive
    p90_ms: Positive
    stopped_by: str
    method: str
    samples_ms: tuple[float, ...]


def summarize(samples_ms: Sequence[float], elapsed_s: float, method: str) -> Timing:
    """Returns a Timing with the mean, spread, percentiles and stop reason of a test's times.

    The runs took `elapsed_s` together with the work between the runs.
    """
    n = len(samples_ms)
    deviation, tenths = stdev(samples_ms), quantiles(samples_ms, n=10, method="inclusive")
    spread = (min(samples_ms), max(samples_ms), median(samples_ms), tenths[0], tenths[-1])
    stopped_by = stop_reason(samples_ms, elapsed_s)
    return Timing(n, fmean(samples_ms), deviation, deviation / n**0.5, *spread, stopped_by, method, tuple(samples_ms))


@dataclass(frozen=True)
class Outcome:
    """An outcome says how a submission's process ended, and the verdict on what it did."""

    # pass, wrong (the output), error (an exception, or nothing to judge), crash, timeout or not run (the import failed)
    status: str
    reason: str  # one line
    seconds: float  # the process's wall time
    log: str = ""  # the end of what the process printed


@dataclass(frozen=True)
class LineResult:
    """A line result holds the outcome, verdicts, error and times of one submission on one test line."""

    line: TestLine
    outcome: Outcome  # its reason says how an accepted output misses 1e-3
    accepted: bool = False  # the contract's verdict (rtol = atol = 1e-2)
    tight: bool = False  # the verdict at 1e-3
    max_abs_error: float | None = None
    timing: Timing | None = None
    way: str = ""  # the form that a packed file says it runs, "" if the file says none


@dataclass(frozen=True)
class Evaluation:
    """An evaluation holds the results of one submission, of its first import and of each test line."""

    submission: str
    sha256: str
    mode: str
    device: str
    environment: Mapping[str, str]
    parent_import: Outcome  # the first import, before all tests
    rows: Annotated[tuple[LineResult, ...], Field(min_length=1)]  # the tests
    packed: Mapping[str, Any] = field(default_factory=dict)  # the file on its device code and compilers: contract.py

    @property
    def accepted(self) -> bool:
        """Says whether the import succeeded and every test passed at the contract's tolerance."""
        return self.parent_import.status == "pass" and all(row.outcome.status == "pass" for row in self.rows)

    @property
    def tight(self) -> bool:
        """Says whether the submission is accepted and every test also passed at the tolerance of 1e-3."""
        return self.accepted and all(row.tight for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Returns the evaluation and its verdicts `accepted` and `tight` as a dict of plain values.

        The names of its keys have the units.
        """
        return asdict(self) | {"accepted": self.accepted, "tight": self.tight}


def is_evaluation(values: Mapping[str, Any]) -> bool:
    """Says whether the object of a record's line has the key `submission`, as an evaluation has.

    A row of `run` or `bench` is of a schedule.
    """
    return "submission" in values


def read_evaluation(line: bytes, values: Mapping[str, Any], where: str) -> tuple[str, Evaluation]:
    """Reads a record's line as an evaluation, and returns (its name, the evaluation).

    `values` is the object of the line. Unknown keys are ignored. Raises InputError that begins with `where`.
    """
    evaluation = json_text.checked(Evaluation, line, f"{where}: evaluation")
    return str(values.get("name", evaluation.submission)), evaluation


# --- as people read it ------------------------------------------------------------------------------------------------


def class_lines(evaluation: Evaluation) -> Iterator[str]:
    """Yields a line for each test and one for the check, as the public class harness prints them."""
    for number, row in enumerate(evaluation.rows):
        if row.timing is None:
            told = [f"status={row.outcome.status}"]
            told += [f"max_abs_error={row.max_abs_error:.3g}"] if row.max_abs_error is not None else []
            told += [f"reason={row.outcome.reason}"] if row.outcome.reason else []
        else:
            told = [f"runs={row.timing.n}", *(f"{name}={getattr(row.timing, f'{name}_ms'):.4f} ms" for name in TIMES)]
        yield f"{evaluation.mode}.{number}: {', '.join(told)}"
    yield f"check: {'pass' if evaluation.accepted else 'fail'}"


def title(evaluation: Evaluation) -> str:
    """Returns a table's title, with the mode and the device that its evaluations share."""
    return f"{evaluation.mode}, {evaluation.environment.get('device_name', 'unknown device')}"


class _Line(NamedTuple):
    """A line of the table is a submission's result on a test line, and the baseline's result there if there is one."""

    name: str
    row: LineResult
    baseline: LineResult | None


def _timed(cell: Callable[[Timing], str]) -> Callable[[_Line], str]:
    return lambda line: cell(line.row.timing) if line.row.timing else ""


def _ratio(time: str) -> Callable[[_Line], str]:
    """Returns a function of a line's cell, the baseline's `time` (as mean_ms) by the line's, "" if one is missing."""

    def cell(line: _Line) -> str:
        ours, theirs = line.row.timing, line.baseline and line.baseline.timing
        return f"{getattr(theirs, time) / getattr(ours, time):.3f}" if ours and theirs else ""

    return cell


def _shape(line: _Line) -> str:
    test = line.row.line
    return f"({test.batch_size}, {test.num_heads}, {test.seq_len}, {test.head_dim})"


def _status(line: _Line) -> str:
    return f"{line.row.outcome.status}{'' if line.row.tight or not line.row.accepted else ', not tight'}"


COLUMNS: tuple[Column, ...] = (
    Column("submission", lambda line: line.name, 0),
    Column("test (batch, heads, seq, head_dim)", _shape, 1),
    Column("status", _status, 2),
    Column("n", _timed(lambda timing: str(timing.n)), 6),
    Column("best ms", _timed(lambda timing: f"{timing.best_ms:.4f}"), 4),
    Column("mean ms", _timed(lambda timing: f"{timing.mean_ms:.4f}"), 3),
    Column("median ms", _timed(lambda timing: f"{timing.median_ms:.4f}"), 8),
    Column("p10-p90 ms", _timed(lambda timing: f"{timing.p10_ms:.4f}-{timing.p90_ms:.4f}"), 10),
    Column("max |error|", lambda line: "" if (e := line.row.max_abs_error) is None else f"{e:.2e}", 9),
    Column("stopped by", _timed(lambda timing: timing.stopped_by), 11),
)


def table(heading: str, evaluations: Sequence[tuple[str, Evaluation]], baseline: str | None = None) -> Table:
    """Returns a table of evaluations of the same test lines, by line, with speeds relative to `baseline` if given.

    There are two such speeds, by mean and by best.
    """
    columns, reference = COLUMNS, next((evaluation for name, evaluation in evaluations if name == baseline), None)
    if baseline:
        speeds = (("mean", 5), ("best", 7))
        columns += tuple(Column(f"{word} / {baseline}", _ratio(f"{word}_ms"), rank) for word, rank in speeds)
    lines = [
        _Line(name, evaluation.rows[number], reference.rows[number] if reference else None)
        for number in range(len(evaluations[0][1].rows))
        for name, evaluation in evaluations
    ]
    return Table.of(heading, columns, lines)
