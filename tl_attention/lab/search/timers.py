"""A timer says how much faster a candidate is than the incumbent: by a race on the GPU, or by prediction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple, Protocol

from tl_attention.lab.measure import gpu_worker
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.pool import CallFailed, Worker
from tl_attention.lab.measure.session import START_TIMEOUT_S
from tl_attention.lab.measure.timing import CALLS_PER_ROUND
from tl_attention.lab.search.cells import each, mean_ms
from tl_attention.lab.search.race import LOOKS, verdict
from tl_attention.lab.search.study import Result
from tl_attention.problem.shape import AttentionShape

# What a sample takes at least on the GPU, with LEAST_CALLS calls at least.
SAMPLE_MS, LEAST_CALLS = 20.0, 3
# A candidate whose median is behind by more than this, as a logarithm, after so many rounds has lost.
HOPELESS = {1: 0.05, 3: 0.02}
# One that is not ahead by so much after so many rounds is level: no final could tell it from the incumbent.
LEVEL_AFTER, LEVEL = 10, 0.003
# A candidate that hangs costs so long.
TIMEOUT_S = 20.0
# So many candidates that fail after each other, where none ran, are the machine's failure.
FAILURES = 12


class Raced(NamedTuple):
    """A Raced holds log(time of the incumbent / time of the candidate) of each round, and what was decided by them."""

    ratios: list[float]
    verdict: str
    ms: float
    # Of each problem where there are several: the median of its ratios, and its time. `ms` is their geometric mean.
    cells: tuple[float, ...] = ()
    cells_ms: tuple[float, ...] = ()


class Incumbent(NamedTuple):
    """An Incumbent is the best candidate so far."""

    candidate: Candidate
    result: Result


class CandidateFailed(Exception):
    """This error says why a candidate cannot be timed: it is wrong, hangs or crashes."""


class Timer(Protocol):
    """A `Timer` times a candidate beside the incumbent. Raises CandidateFailed, or CallFailed for the machine."""

    def __call__(self, candidate: Candidate, compiled: Compiled, incumbent: Incumbent | None) -> Raced: ...


class OnGpu:
    """An `OnGpu` verifies a candidate briefly, and has it race with the incumbent in one process."""

    def __init__(self, worker: Worker, seed: int, others: Sequence[AttentionShape] = ()) -> None:
        self._worker, self._seed, self._others = worker, seed, others
        self._loaded: set[Candidate] = set()
        self._failures = 0

    def __call__(self, candidate: Candidate, compiled: Compiled, incumbent: Incumbent | None) -> Raced:
        ours, best = each(candidate, self._others), each(incumbent.candidate, self._others) if incumbent else []
        if not self._loaded:
            # A new process starts first, which takes longer than a candidate may.
            self._worker.call(gpu_worker.device_name, timeout_s=START_TIMEOUT_S)
        for one in best:
            # It ran before: where it fails now, the machine fails. On another machine it may have to be compiled.
            self._load(one, START_TIMEOUT_S)
        try:
            for one in ours:
                report = self._worker.call(gpu_worker.verify_some_rows, one, self._seed, timeout_s=TIMEOUT_S)
                if not report.ok:
                    raise CandidateFailed(f"wrong: {report}")
                self._load(one)
            raced = self._race(ours, best)
        except CallFailed as failed:
            self._loaded.clear()
            self._failures += 1
            if self._failures == FAILURES:
                raise CallFailed(failed.status, f"{FAILURES} candidates failed, the last one: {failed}") from None
            raise CandidateFailed(f"{failed.status}: {failed}") from None
        self._failures = 0
        if best:
            for loser in best if raced.verdict == "faster" else ours:
                self._worker.call(gpu_worker.forget, loser, timeout_s=TIMEOUT_S)
                self._loaded.discard(loser)
        return raced

    def _load(self, candidate: Candidate, timeout_s: float = TIMEOUT_S) -> None:
        if candidate not in self._loaded:
            self._worker.call(gpu_worker.load, candidate, self._seed, timeout_s=timeout_s)
            self._loaded.add(candidate)

    def _race(self, ours: Sequence[Candidate], best: Sequence[Candidate]) -> Raced:
        """Races in each problem, a round in all of them: what counts is the mean of their ratios."""
        ms = {one: [self._sample(one, LEAST_CALLS)] for one in ours}
        calls = [min(max(math.ceil(SAMPLE_MS / ms[one][0]), LEAST_CALLS), CALLS_PER_ROUND) for one in ours]
        ratios: list[float] = []
        of_each: list[list[float]] = [[] for _ in best]
        decided = "undecided" if best else "first"
        for number in range(LOOKS[-1] if best else 0):
            for one, other, count, found in zip(ours, best, calls, of_each):
                both = (one, other) if number % 2 else (other, one)
                times = {this: self._sample(this, count) for this in both}
                ms[one].append(times[one])
                found.append(math.log(times[other] / times[one]))
            ratios.append(fmean(found[-1] for found in of_each))
            ahead = statistics.median(ratios)
            # One that is good in a single problem may serve that.
            hopeless = max(map(statistics.median, of_each)) < -HOPELESS.get(len(ratios), math.inf)
            decided = "slower" if hopeless else verdict(ratios)
            if decided == "undecided" and len(ratios) >= LEVEL_AFTER and ahead < LEVEL:
                decided = "level"
            if decided != "undecided":
                break
        times_ms = [statistics.median(ms[one]) for one in ours]
        if not self._others:
            return Raced(ratios, decided, times_ms[0])
        cells = [statistics.median(found) for found in of_each] if best else [0.0] * len(ours)
        return Raced(ratios, decided, mean_ms(times_ms), tuple(cells), tuple(times_ms))

    def _sample(self, candidate: Candidate, calls: int) -> float:
        times, _ = self._worker.call(gpu_worker.sample, candidate, calls, timeout_s=TIMEOUT_S)
        return statistics.median(times)


class ByPrediction:
    """A `ByPrediction` compares predicted times, for a search without a GPU."""

    def __call__(self, candidate: Candidate, compiled: Compiled, incumbent: Incumbent | None) -> Raced:
        if compiled.predicted_ms is None:
            raise CandidateFailed("nothing is predicted of it")
        times: tuple[float, ...] = getattr(compiled, "cells_ms", ())
        if incumbent is None:
            return Raced([], "first", compiled.predicted_ms, (0.0,) * len(times), times)
        ratio = math.log(incumbent.result.ms / compiled.predicted_ms)
        cells = tuple(math.log(best / one) for best, one in zip(incumbent.result.cells_ms, times))
        return Raced([ratio], "faster" if ratio > 0 else "slower", compiled.predicted_ms, cells, times)
