"""This module holds the results of an evaluation, as a line of JSON for the record, and as tables and lines to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, quantiles, stdev
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.worker import stop_reason
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted

TIMES = ("mean", "std", "err", "best", "worst")
SHAPE = "test (batch, heads, seq, head_dim)"
MS = ("best ms", "mean ms", "median ms", "p10-p90 ms")
HEADINGS = ("submission", SHAPE, "status", "n", *MS, "max |error|", "stopped by")
# Which columns a narrow terminal keeps; 10 and 11 are relative to a baseline.
PRIORITY = (0, 1, 2, 5, 4, 10, 3, 11, 6, 8, 7, 9)

Milliseconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Timing:
    """A timing holds the times of one test.

    A cool card can stop after three runs and look 10 % faster: `n` belongs beside the mean.
    """

    n: int
    mean_ms: Milliseconds
    std_ms: float
    err_ms: float
    best_ms: Milliseconds
    worst_ms: Milliseconds
    median_ms: Milliseconds
    p10_ms: Milliseconds
    p90_ms: Milliseconds
    stopped_by: str
    method: str
    samples_ms: tuple[float, ...]


def summarize(samples_ms: Sequence[float], elapsed_s: float, method: str) -> Timing:
    """Summarizes the runs of a test, which took `elapsed_s` together with the work between the runs."""
    n = len(samples_ms)
    deviation, tenths = stdev(samples_ms), quantiles(samples_ms, n=10, method="inclusive")
    spread = (min(samples_ms), max(samples_ms), median(samples_ms), tenths[0], tenths[-1])
    stopped_by = stop_reason(samples_ms, elapsed_s)
    return Timing(n, fmean(samples_ms), deviation, deviation / n**0.5, *spread, stopped_by, method, tuple(samples_ms))


@dataclass(frozen=True)
class Outcome:
    """An outcome says how a submission's process ended, and the verdict on what it did.

    `status` is pass, wrong (the output), error (an exception, or nothing to judge), crash, timeout or not run (the
    import failed). `reason` is one line, `log` the end of what the process printed, `seconds` the process's wall time.
    """

    status: str
    reason: str
    seconds: float
    log: str = ""


@dataclass(frozen=True)
class LineResult:
    """A line result is the result of one submission on one test line.

    `accepted` is the contract's verdict (rtol = atol = 1e-2), `tight` the verdict at 1e-3. The outcome's reason says
    how an accepted output misses 1e-3. `way` is the form that a packed file says it runs, "" if the file says none.
    """

    line: TestLine
    outcome: Outcome
    accepted: bool = False
    tight: bool = False
    max_abs_error: float | None = None
    timing: Timing | None = None
    way: str = ""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation is the result of one submission under the contract.

    `parent_import` is the first import, before all tests; `rows` are the tests. `packed` is what the file says of its
    generated device code and its compilers: see contract.py.
    """

    submission: str
    sha256: str
    mode: str
    device: str
    environment: Mapping[str, str]
    parent_import: Outcome
    rows: Annotated[tuple[LineResult, ...], Field(min_length=1)]
    packed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Says whether the import succeeded and every test passed at the contract's tolerance."""
        return self.parent_import.status == "pass" and all(row.outcome.status == "pass" for row in self.rows)

    @property
    def tight(self) -> bool:
        """Says whether the submission is accepted and every test also passed at the tolerance of 1e-3."""
        return self.accepted and all(row.tight for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain values, with units in the names of its keys."""
        return asdict(self) | {"accepted": self.accepted, "tight": self.tight}


def is_evaluation(values: Mapping[str, Any]) -> bool:
    """Says whether a line's object is an evaluation of a submission. A row of `run` or `bench` is of a schedule."""
    return "submission" in values


def read_evaluation(line: bytes, values: Mapping[str, Any], where: str) -> tuple[str, Evaluation]:
    """Returns (name, evaluation) of a line and its object. Unknown keys are ignored.

    Raises InputError that begins with `where`.
    """
    try:
        evaluation = TypeAdapter(Evaluation).validate_json(line, strict=True)
    except ValidationError as error:
        key, message = first_error(error)
        raise InputError(f"{where}: evaluation: {dotted(key)}{message}") from None
    return str(values.get("name", evaluation.submission)), evaluation


# --- as people read it ------------------------------------------------------------------------------------------------


def class_lines(evaluation: Evaluation) -> Iterator[str]:
    """Yields the lines that the public class harness prints: one for each test, then the check."""
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
    """Returns the title of a table: the mode and the device, which its evaluations share."""
    return f"{evaluation.mode}, {evaluation.environment.get('device_name', 'unknown device')}"


def headings(baseline: str | None) -> tuple[str, ...]:
    """Returns the table's headings. A baseline adds the speed relative to the baseline, by mean and by best."""
    return HEADINGS if baseline is None else (*HEADINGS, f"mean / {baseline}", f"best / {baseline}")


def lines(evaluations: Sequence[tuple[str, Evaluation]], baseline: str | None = None) -> list[tuple[str, ...]]:
    """Returns the table's rows for evaluations of the same test lines, grouped by line.

    Speeds are relative to `baseline`.
    """
    found = []
    for number in range(len(evaluations[0][1].rows)):
        reference = next((evaluation.rows[number] for name, evaluation in evaluations if name == baseline), None)
        for name, evaluation in evaluations:
            row = evaluation.rows[number]
            found.append((name, *_cells(row), *(() if baseline is None else _ratios(row, reference))))
    return found


def _cells(row: LineResult) -> tuple[str, ...]:
    line, timing = row.line, row.timing
    status = row.outcome.status if row.tight or not row.accepted else f"{row.outcome.status}, not tight"
    error = "" if row.max_abs_error is None else f"{row.max_abs_error:.2e}"
    times = ("",) * (1 + len(MS))
    if timing is not None:
        milliseconds = (f"{ms:.4f}" for ms in (timing.best_ms, timing.mean_ms, timing.median_ms))
        times = (str(timing.n), *milliseconds, f"{timing.p10_ms:.4f}-{timing.p90_ms:.4f}")
    shape = f"({line.batch_size}, {line.num_heads}, {line.seq_len}, {line.head_dim})"
    return (shape, status, *times, error, timing.stopped_by if timing else "")


def _ratios(row: LineResult, reference: LineResult | None) -> tuple[str, str]:
    if reference is None or row.timing is None or reference.timing is None:
        return "", ""
    mean, best = reference.timing.mean_ms / row.timing.mean_ms, reference.timing.best_ms / row.timing.best_ms
    return f"{mean:.3f}", f"{best:.3f}"
