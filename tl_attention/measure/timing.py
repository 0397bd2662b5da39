"""Times a call on the GPU, and says what a list of times amounts to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CALLS_PER_ROUND = 8
PAUSE_S = 0.1
METHOD = (
    "CUDA events around each call, {calls} calls after one untimed call per round, {rounds} rounds, candidates "
    "interleaved in one process in alternating order, {pause} s pause between candidates, L2 not flushed"
)


@dataclass(frozen=True)
class Timing:
    """Times of one candidate, milliseconds; `n` single calls."""

    median_ms: float
    p10_ms: float
    p90_ms: float
    n: int
    sm_clock_mhz: int | None

    @classmethod
    def of(cls, samples_ms: Sequence[float], clocks_mhz: Sequence[int]) -> Timing:
        """Summary of at least two samples."""
        deciles = statistics.quantiles(samples_ms, n=10, method="inclusive")
        clock = round(statistics.median(clocks_mhz)) if clocks_mhz else None
        return cls(statistics.median(samples_ms), deciles[0], deciles[-1], len(samples_ms), clock)


def tflops(flops: int, ms: float) -> float:
    return flops / ms / 1e9


def method(rounds: int) -> str:
    """How the times were taken, for the record."""
    return METHOD.format(calls=CALLS_PER_ROUND, rounds=rounds, pause=PAUSE_S)


def sample(call: Callable[[], object], calls: int = CALLS_PER_ROUND) -> tuple[list[float], int | None]:
    """Milliseconds of each of `calls` calls, and the SM clock in MHz while they ran."""
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


def sm_clock_mhz() -> int | None:
    """The SM clock now, or None where NVML does not tell."""
    import torch

    try:
        return torch.cuda.clock_rate()
    except (RuntimeError, ModuleNotFoundError, OSError):
        return None
