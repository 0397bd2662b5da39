"""This module times a call on the GPU, and says what a list of times amounts to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CALLS_PER_ROUND = 8
PAUSE_S = 0.1
METHOD = (
    "CUDA events around each call, {calls} calls after one untimed call per round, {rounds} rounds, candidates "
    "interleaved in one process in alternating order, {pause} s pause between candidates, L2 not flushed"
)
# How many calls a batch may have.
LEAST_CALLS, MOST_CALLS = 3, 200
# Cycles that the GPU waits before a batch, at first and at most: half a millisecond, and a second.
FIRST_HOLD, LONGEST_HOLD = 1 << 20, 1 << 31
BATCH_METHOD = (
    "CUDA events around a batch of calls of about {batch} ms, at least {least} calls, one batch a round after one untimed "
    "call; the GPU is held back until the whole batch is enqueued, so no host time is measured; {rounds} rounds, entries "
    "interleaved in one process in alternating order, {pause} s pause between entries, L2 not flushed"
)
GRAPH_METHOD = (
    "CUDA events around the replay of a CUDA graph that has calls of about {batch} ms, at least {least} calls, one replay a "
    "round after one untimed replay; {rounds} rounds, entries interleaved in one process in alternating order, {pause} s "
    "pause between entries, L2 not flushed"
)


@dataclass(frozen=True)
class Timing:
    """A `Timing` summarises the times of one candidate."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    n: int  # single calls
    sm_clock_mhz: int | None

    @classmethod
    def of(cls, samples_ms: Sequence[float], clocks_mhz: Sequence[int]) -> Timing:
        """Makes a `Timing` of two or more times, with their median, deciles and number, and with the median clock."""
        deciles = statistics.quantiles(samples_ms, n=10, method="inclusive")
        clock = round(statistics.median(clocks_mhz)) if clocks_mhz else None
        return cls(statistics.median(samples_ms), deciles[0], deciles[-1], len(samples_ms), clock)


def tflops(flops: int, ms: float) -> float:
    return flops / ms / 1e9


def method(rounds: int) -> str:
    """Returns the text that records how single calls were timed, in so many rounds."""
    return METHOD.format(calls=CALLS_PER_ROUND, rounds=rounds, pause=PAUSE_S)


def sample(call: Callable[[], object], calls: int = CALLS_PER_ROUND) -> tuple[list[float], int | None]:
    """Returns the milliseconds of each of `calls` calls, and the SM clock in MHz while they ran."""
    import torch

    call()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
    for start, end in marks:
        start.record()
        call()
        end.record()
    clock = sm_clock_mhz()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks], clock


class TimedBatch:
    """A `TimedBatch` times a call on the GPU in batches, each begun when the host has enqueued all its calls.

    The time that a call takes on the host, in a Python wrapper for one, is not measured then: the GPU finds the next
    kernel waiting. `calls` is the number of calls in a batch. Raises RuntimeError for a call that waits for the GPU, so
    that it cannot be enqueued.
    """

    # The milliseconds of a batch, and the seconds of the pause after it.
    ms, pause_s = 10.0, 0.02
    text = BATCH_METHOD
    _hold = FIRST_HOLD

    @classmethod
    def method(cls, rounds: int) -> str:
        """Returns the text that records how batches of calls were timed, in so many rounds."""
        return cls.text.format(batch=cls.ms, least=LEAST_CALLS, rounds=rounds, pause=cls.pause_s)

    def __init__(self, call: Callable[[], object]):
        self._call = call
        self._prepare(LEAST_CALLS)
        ms, _ = self.sample()
        self._prepare(min(max(math.ceil(self.ms / ms), LEAST_CALLS), MOST_CALLS))

    def _prepare(self, calls: int) -> None:
        self.calls = calls

    def sample(self) -> tuple[float, int | None]:
        """Returns the milliseconds of one call, the mean of a batch's calls, and the SM clock in MHz meanwhile."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._call()
        while True:
            torch.cuda._sleep(self._hold)
            start.record()
            for _ in range(self.calls):
                self._call()
            end.record()
            was_held = not start.query()
            clock = sm_clock_mhz()
            torch.cuda.synchronize()
            if was_held:
                return start.elapsed_time(end) / self.calls, clock
            if self._hold == LONGEST_HOLD:
                raise RuntimeError(f"{self.calls} calls cannot be enqueued ahead of the GPU: a call waits for it")
            self._hold *= 2


class GraphBatch(TimedBatch):
    """A `GraphBatch` times a call in a CUDA graph of `calls` calls, as a model that generates replays it.

    Between kernels of a graph there is less time than between kernels that are launched one after another. Raises
    RuntimeError for a call that cannot be captured.
    """

    ms, pause_s = 4.0, 0.005
    text = GRAPH_METHOD

    def _prepare(self, calls: int) -> None:
        import torch

        self.calls, self._graph = calls, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(calls):
                self._call()

    def sample(self) -> tuple[float, int | None]:
        """Returns the milliseconds of one call, the mean of a graph's calls, and the SM clock in MHz meanwhile."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._graph.replay()
        start.record()
        self._graph.replay()
        end.record()
        clock = sm_clock_mhz()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / self.calls, clock


def sm_clock_mhz() -> int | None:
    """Returns the SM clock now, or None where NVML does not tell."""
    import torch

    try:
        return torch.cuda.clock_rate()
    except (RuntimeError, ModuleNotFoundError, OSError):
        return None
