"""Samples of several candidates, taken in turn in one process: only such are compared with each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from tl_attention.measure import gpu_worker, timing
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.pool import CallFailed, Worker
from tl_attention.measure.progress import SILENT, Progress

Entry = TypeVar("Entry")
UNLOAD_TIMEOUT_S, LOAD_TIMEOUT_S, SAMPLE_TIMEOUT_S = 120.0, 120.0, 60.0


@dataclass
class Samples:
    """One candidate's: milliseconds of calls, a list for each round, and the SM's MHz where it is told.

    Of a batch of `calls` the list has one number, their mean.
    """

    calls: int = 1
    rounds_ms: list[list[float]] = field(default_factory=list)
    clocks_mhz: list[int] = field(default_factory=list)

    def add(self, times: list[float], clock_mhz: int | None) -> None:
        """One round more."""
        self.rounds_ms.append(times)
        self.clocks_mhz.extend([clock_mhz] if clock_mhz else [])

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


def in_turn(entries: Sequence[Entry], rounds: int) -> Iterator[Entry]:
    """Each entry once a round: forward in one round and backward in the next."""
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
    batches: bool = False,
) -> list[Samples]:
    """Samples of every candidate, in turn; one that stands there twice has two.

    Of single calls, or of batches. `phase` is what progress calls it. Raises BrokeWorker.
    """
    different = list(dict.fromkeys(candidates))
    progress.phase(phase, len(different) + len(candidates) * rounds)
    candidate, calls = candidates[0], {}
    load, take, pause_s = (
        (gpu_worker.load_batch, gpu_worker.sample_batch, timing.BATCH_PAUSE_S)
        if batches
        else (gpu_worker.load, gpu_worker.sample, timing.PAUSE_S)
    )
    try:
        worker.call(gpu_worker.unload, timeout_s=UNLOAD_TIMEOUT_S)
        for candidate in different:
            calls[candidate] = worker.call(load, candidate, seed, timeout_s=LOAD_TIMEOUT_S) or 1
            progress.advance(str(candidate))
        entries = [(candidate, Samples(calls[candidate])) for candidate in candidates]
        for candidate, samples in in_turn(entries, rounds):
            samples.add(*worker.call(take, candidate, timeout_s=SAMPLE_TIMEOUT_S))
            progress.advance(str(candidate))
            time.sleep(pause_s)
    except CallFailed as failed:
        raise BrokeWorker(candidate, failed) from None
    return [samples for _, samples in entries]
