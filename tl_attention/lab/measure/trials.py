"""Trials verify a candidate, on the GPU or by the interpreter, and sample candidates in turn with each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, TypeVar

from tl_attention.lab.measure import gpu_worker, timing
from tl_attention.lab.measure.candidate import Candidate, verified_on
from tl_attention.lab.measure.pool import CallFailed, Worker
from tl_attention.lab.oracle import interpret
from tl_attention.lab.oracle.reference import ErrorReport, worst_of


class Progress(Protocol):
    """A `Progress` is told when a phase of `total` steps begins (`phase`) and when a step ends (`advance`)."""

    def phase(self, name: str, total: int) -> None: ...
    def advance(self, what: str) -> None: ...


class Silent:
    """A `Silent` is a `Progress` that shows nothing."""

    def phase(self, name: str, total: int) -> None: ...
    def advance(self, what: str) -> None: ...


SILENT = Silent()


TIMEOUT_S = 120.0


def on_gpu(worker: Worker, candidate: Candidate, seed: int) -> dict[str, Any]:
    """Verifies a candidate on the GPU, and returns fields of its row with the errors, or where and how it failed."""
    problems = verified_on(candidate.shape, candidate.fixed or candidate.planned is None, candidate.planned)
    reports: list[ErrorReport] = []
    for number, problem in enumerate(problems):
        try:
            report, stable = worker.call(gpu_worker.verify, candidate, *problem, seed + number, timeout_s=TIMEOUT_S)
        except CallFailed as failed:
            return {"status": failed.status, "reason": f"verifying {problem}: {failed}"}
        if not report.ok:
            return {"status": "wrong", "reason": f"{problem}: {report}", **_errors(report)}
        if not stable:
            reason = f"{problem}: repeats on the same inputs differ"
            return {"status": "unstable", "reason": reason, **_errors(report)}
        reports.append(report)
    return {"verified_shapes": len(problems), **_errors(worst_of(reports))}


def on_cpu(candidate: Candidate, seed: int) -> dict[str, Any]:
    """Verifies a schedule's candidate by the interpreter, and returns its row's status, reason and errors.

    It serves where there is no GPU to run the candidate. A schedule without a Program is only `compiled`.
    """
    schedule, program = candidate.ours.schedule, candidate.ours.program
    if program is None:
        reason = "no GPU, and no Program that the CPU could run: neither verified nor timed"
        return {"status": "compiled", "reason": reason}
    reports = interpret.verify(program, schedule, candidate.variant, seed).values()
    worst = worst_of(list(reports))
    if not all(report.ok for report in reports):
        return {"status": "wrong", "reason": str(worst), **_errors(worst)}
    reason = "no GPU: verified by the interpreter, nothing was timed"
    return {"status": "checked_on_cpu", "reason": reason, **_errors(worst)}


def _errors(report: ErrorReport) -> dict[str, float]:
    return {
        "error_rms": report.rms,
        "error_rms_budget": report.budget_rms,
        "error_max_abs": report.max_abs,
        "error_max_abs_budget": report.budget_max_abs,
    }


Entry = TypeVar("Entry")
UNLOAD_TIMEOUT_S, LOAD_TIMEOUT_S, SAMPLE_TIMEOUT_S = 120.0, 120.0, 60.0


@dataclass
class Samples:
    """A `Samples` holds a candidate's times and the SM's clocks."""

    calls: int = 1  # of a batch
    rounds_ms: list[list[float]] = field(default_factory=list)  # of each round a batch's mean, or each call's time
    # Those that are known.
    clocks_mhz: list[int] = field(default_factory=list)

    def add(self, times: list[float], clock_mhz: int | None) -> None:
        """Adds the times of a round, and the round's clock if it is known."""
        self.rounds_ms.append(times)
        self.clocks_mhz.extend([clock_mhz] if clock_mhz else [])

    @property
    def timing(self) -> timing.Timing:
        """Returns the median, deciles and clock of the calls of all rounds together."""
        return timing.Timing.of(list(chain(*self.rounds_ms)), self.clocks_mhz)

    @property
    def medians_ms(self) -> list[float]:
        """Returns the median time of each round, in milliseconds."""
        return list(map(statistics.median, self.rounds_ms))


class BrokeWorker(Exception):
    """This error names the candidate that broke the process in which all were sampled.

    No candidate's samples can be used.
    """

    def __init__(self, candidate: Candidate, failed: CallFailed):
        super().__init__(str(failed))
        self.candidate, self.status = candidate, failed.status


def in_turn(entries: Sequence[Entry], rounds: int) -> Iterator[Entry]:
    """Yields each entry once a round, forward in one round and backward in the next."""
    for number in range(rounds):
        yield from entries if number % 2 == 0 else reversed(entries)


def sample(
    worker: Worker,
    candidates: Sequence[Candidate],
    *,
    seed: int,
    rounds: int,
    phase: str = "",
    progress: Progress = SILENT,
    batches: type[timing.TimedBatch] | None = None,
    warm_s: float = 0.0,
) -> list[Samples]:
    """Times the candidates in turn in the worker for so many rounds, and returns the samples of each.

    A candidate that is listed twice has two. Samples are of single calls, or of batches. `phase` is what progress calls
    them. With `warm_s` the GPU is busy for so long first, and each candidate has tensors of its own. Raises
    BrokeWorker.
    """
    different = list(dict.fromkeys(candidates))
    progress.phase(phase, len(different) + len(candidates) * rounds)
    candidate, calls = candidates[0], {}
    try:
        worker.call(gpu_worker.unload, timeout_s=UNLOAD_TIMEOUT_S)
        for candidate in different:
            if warm_s:
                worker.call(gpu_worker.forget_tensors, timeout_s=UNLOAD_TIMEOUT_S)
            calls[candidate] = worker.call(gpu_worker.load, candidate, seed, batches, timeout_s=LOAD_TIMEOUT_S)
            progress.advance(str(candidate))
        if warm_s:
            worker.call(gpu_worker.warm, candidates[-1], warm_s, timeout_s=SAMPLE_TIMEOUT_S)
        entries = [(candidate, Samples(calls[candidate])) for candidate in candidates]
        for candidate, samples in in_turn(entries, rounds):
            samples.add(*worker.call(gpu_worker.sample, candidate, timeout_s=SAMPLE_TIMEOUT_S))
            progress.advance(str(candidate))
            time.sleep(batches.pause_s if batches else timing.PAUSE_S)
    except CallFailed as failed:
        raise BrokeWorker(candidate, failed) from None
    return [samples for _, samples in entries]
