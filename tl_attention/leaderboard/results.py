"""What an evaluation found: the record of a submission, written as a line of JSON and read back from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, quantiles, stdev
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.stop_rule import stop_reason
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted

Milliseconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Timing:
    """The times of one test. A cool card can stop after three runs and look 10 % faster: `n` belongs beside the mean."""

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
    """The summary of a test's runs. Raises ValueError unless the stop rule holds after the last of them, not before.

    When each run ended is not known, so `elapsed_s` counts for the last alone.
    """
    n = len(samples_ms)
    stopped_by = stop_reason(samples_ms, elapsed_s)
    if not stopped_by or any(stop_reason(samples_ms[:runs], 0.0) for runs in range(n)):
        raise ValueError(f"the {n} timed runs do not keep the stop rule")
    deviation, tenths = stdev(samples_ms), quantiles(samples_ms, n=10, method="inclusive")
    spread = (min(samples_ms), max(samples_ms), median(samples_ms), tenths[0], tenths[-1])
    return Timing(n, fmean(samples_ms), deviation, deviation / n**0.5, *spread, stopped_by, method, tuple(samples_ms))


@dataclass(frozen=True)
class Outcome:
    """How a process ended and what was made of it: `reason` is one line, `log` the end of what the process printed.

    `status` is pass, wrong (the output), error (an exception, or nothing to judge), crash, timeout, void (the judge's
    own files have changed) or not run (the import failed). `seconds` is the process's wall time.
    """

    status: str
    reason: str
    seconds: float
    log: str = ""


@dataclass(frozen=True)
class LineResult:
    """One test line of one submission.

    `accepted` is the contract's verdict (rtol = atol = 1e-2), `tight` the one at 1e-3; the outcome's reason names the
    tighter miss of an accepted output. `way` is the form that a packed file says it runs, "" if it says none.
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
    """One submission under the contract: `parent_import` is the first of its two imports, `rows` are the tests.

    `packed` is what the file says of its generated device code and its compilers: see device_code.py.
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
        """Whether every test passed at the contract's tolerance."""
        return self.parent_import.status == "pass" and all(row.outcome.status == "pass" for row in self.rows)

    @property
    def tight(self) -> bool:
        """Whether every test also holds the tolerance of 1e-3."""
        return self.accepted and all(row.tight for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values, units in the names of its keys."""
        return asdict(self) | {"accepted": self.accepted, "tight": self.tight}


def is_evaluation(values: Mapping[str, Any]) -> bool:
    """Whether a line's object is an evaluation of a submission; a row of `run` or `bench` is of a schedule."""
    return "submission" in values


def read_evaluation(line: bytes, values: Mapping[str, Any], where: str) -> tuple[str, Evaluation]:
    """(name, evaluation) of a line and its object; unknown keys are passed over. Raises InputError with `where`."""
    try:
        evaluation = TypeAdapter(Evaluation).validate_json(line, strict=True)
    except ValidationError as error:
        key, message = first_error(error)
        raise InputError(f"{where}: evaluation: {dotted(key)}{message}") from None
    return str(values.get("name", evaluation.submission)), evaluation
