"""Samples of several candidates, taken in turn in one process: only such are compared with each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from tl_attention.measure import gpu_worker, timing
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.pool import CallFailed, Worker
from tl_attention.measure.progress import Progress

UNLOAD_TIMEOUT_S, LOAD_TIMEOUT_S, SAMPLE_TIMEOUT_S = 120.0, 120.0, 60.0


@dataclass
class Samples:
    """One candidate's: milliseconds of single calls, a list for each round, and the SM's MHz where it is told."""

    rounds_ms: list[list[float]] = field(default_factory=list)
    clocks_mhz: list[int] = field(default_factory=list)

    @property
    def timing(self) -> timing.Timing:
        """All rounds together."""
        return timing.Timing.of(list(chain(*self.rounds_ms)), self.clocks_mhz)

    @property
    def medians_ms(self) -> list[float]:
        """One median for each round."""
        return list(map(statistics.median, self.rounds_ms))


class BrokeWorker(Exception):
    """A candidate broke the process in which all were sampled: none of their samples can be used."""

    def __init__(self, candidate: Candidate, failed: CallFailed):
        super().__init__(str(failed))
        self.candidate, self.status = candidate, failed.status


def sample(
    worker: Worker, candidates: Sequence[Candidate], *, seed: int, rounds: int, phase: str, progress: Progress
) -> dict[Candidate, Samples]:
    """Samples of every candidate, all different, forward in one round and backward in the next.

    `phase` is what progress calls it. Raises BrokeWorker.
    """
    samples = {candidate: Samples() for candidate in candidates}
    assert len(samples) == len(candidates), f"{phase}: a candidate stands there twice"
    progress.phase(phase, len(candidates) * (rounds + 1))
    candidate = candidates[0]
    try:
        worker.call(gpu_worker.unload, timeout_s=UNLOAD_TIMEOUT_S)
        for candidate in candidates:
            worker.call(gpu_worker.load, candidate, seed, timeout_s=LOAD_TIMEOUT_S)
            progress.advance(str(candidate))
        for number in range(rounds):
            for candidate in candidates if number % 2 == 0 else reversed(candidates):
                times, clock = worker.call(gpu_worker.sample, candidate, timeout_s=SAMPLE_TIMEOUT_S)
                samples[candidate].rounds_ms.append(times)
                samples[candidate].clocks_mhz.extend([clock] if clock else [])
                progress.advance(str(candidate))
                time.sleep(timing.PAUSE_S)
    except CallFailed as failed:
        raise BrokeWorker(candidate, failed) from None
    return samples
