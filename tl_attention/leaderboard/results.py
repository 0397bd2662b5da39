"""What an evaluation found, and its views: JSON, the class harness's lines, the upstream harness's keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.stop_rule import Timing

STATUSES = ("pass", "wrong", "error", "crash", "timeout", "not run")
NS_PER_MS = 1e6
# What templates/all.py.in prints.
WAY = re.compile(r"^submission: runs (\w{1,40})$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class Outcome:
    """How one process ended: `status` is one of STATUSES, `reason` one line, `log` the end of what it printed.

    pass: it did what was asked. wrong: the output was not accepted. error: an exception, or it told what is no valid
    message. crash: the process died.
    timeout: it was killed at the limit. not run: an earlier step failed. `seconds` is its wall time, start included and
    checks of its outputs left out.
    """

    status: str
    reason: str
    seconds: float
    log: str = ""


@dataclass(frozen=True)
class Verdict:
    """How one output compares with the fp64 reference: the fields of reference.py's Comparison, without torch."""

    accepted: bool
    tight: bool
    max_abs_error: float | None
    reason: str


@dataclass(frozen=True)
class LineResult:
    """One test line of one submission.

    `accepted` is the contract's verdict (rtol = atol = 1e-2), `tight` the one at 1e-3; `reason` names the tighter
    miss of an accepted output. `kept_mib` is what torch's allocator still holds for the file after its first call,
    output left out; None on the CPU. `timing` is None in test mode and where the test failed.
    `way` is which of its ways a packed file says that it took, by_nvcc for instance; "" where it says nothing.
    """

    line: TestLine
    outcome: Outcome
    accepted: bool = False
    tight: bool = False
    max_abs_error: float | None = None
    kept_mib: float | None = None
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
    violations: tuple[str, ...]
    parent_import: Outcome
    rows: tuple[LineResult, ...]
    packed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """The harness's verdict: every test passed at the contract's tolerance."""
        return self.parent_import.status == "pass" and all(row.outcome.status == "pass" for row in self.rows)

    @property
    def tight(self) -> bool:
        """Whether every test also holds the tolerance of 1e-3."""
        return self.accepted and all(row.tight for row in self.rows)

    def to_json(self) -> dict:
        """A dict of plain values, units in the names of its keys."""
        found = asdict(self) | {"accepted": self.accepted, "tight": self.tight}
        for row, shown in zip(self.rows, found["rows"], strict=True):
            shown["spec"] = str(row.line)
        return found


def way_taken(log: str) -> str:
    """The way that a packed file says last that it runs, "" where no line of the log says it."""
    return (["", *WAY.findall(log)])[-1]


def class_lines(evaluation: Evaluation) -> Iterator[str]:
    """What the public class harness prints: one line a test, then the check."""
    for number, row in enumerate(evaluation.rows):
        yield f"{evaluation.mode}.{number}: {_one_line(_class_values(row))}"
    yield f"check: {_verdict(evaluation.accepted)}"


def popcorn_lines(evaluation: Evaluation) -> Iterator[str]:
    """The upstream harness's `key: value` lines, times in nanoseconds."""
    mode = evaluation.mode
    yield f"{mode}-count: {len(evaluation.rows)}"
    for number, row in enumerate(evaluation.rows):
        for key, value in _popcorn_values(row, mode):
            yield f"{mode}.{number}.{key}: {_one_line(value)}"
    yield f"check: {_verdict(evaluation.accepted)}"


def _class_values(row: LineResult) -> str:
    timing = row.timing
    if timing is None:
        reason = f", reason={row.outcome.reason}" if row.outcome.reason else ""
        error = "" if row.max_abs_error is None else f", max_abs_error={row.max_abs_error:.3g}"
        return f"status={row.outcome.status}{error}{reason}"
    times = ((name, getattr(timing, f"{name}_ms")) for name in ("mean", "std", "err", "best", "worst"))
    return ", ".join([f"runs={timing.n}", *(f"{name}={value:.4f} ms" for name, value in times)])


def _popcorn_values(row: LineResult, mode: str) -> Iterator[tuple[str, object]]:
    yield "spec", row.line
    passed = row.outcome.status == "pass"
    if mode == "test" or not passed:
        yield "status", _verdict(passed)
    if not passed:
        yield "error", f"{row.outcome.status}: {row.outcome.reason}"
    elif row.timing is not None:
        yield "runs", row.timing.n
        for name in ("mean", "std", "err", "best", "worst"):
            yield name, getattr(row.timing, f"{name}_ms") * NS_PER_MS


def _one_line(value: object) -> str:
    """Both protocols are read line by line."""
    return " ".join(str(value).split())


def _verdict(passed: bool) -> str:
    return "pass" if passed else "fail"
