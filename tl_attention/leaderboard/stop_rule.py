"""When the timing of a submission stops, and what is reported of its samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_REPEATS = 100
# The public harness looks at its samples from the third on, so three runs are the fewest that it reports.
MIN_REPEATS = 3
MAX_RELATIVE_ERROR = 0.001
MAX_RUNS_MS = 10_000.0
MAX_ELAPSED_S = 120.0


@dataclass(frozen=True)
class Timing:
    """Times of one test, in milliseconds; `std_ms` is the sample deviation and `err_ms` = `std_ms` / sqrt(n).

    A cool card can stop after three runs and look 10 % faster than the mean of 100: read `n` and `best_ms` beside
    `mean_ms`.
    """

    n: int
    mean_ms: float
    std_ms: float
    err_ms: float
    best_ms: float
    worst_ms: float
    median_ms: float
    p10_ms: float
    p90_ms: float
    stopped_by: str
    method: str
    samples_ms: tuple[float, ...]


def summarize(samples_ms: Sequence[float], *, stopped_by: str, method: str) -> Timing:
    """The summary of at least one sample, in milliseconds."""
    assert samples_ms, "no samples"
    mean, std, err = _moments(samples_ms)
    ordered = sorted(samples_ms)
    return Timing(
        n=len(ordered),
        mean_ms=mean,
        std_ms=std,
        err_ms=err,
        best_ms=ordered[0],
        worst_ms=ordered[-1],
        median_ms=statistics.median(ordered),
        p10_ms=_percentile(ordered, 0.1),
        p90_ms=_percentile(ordered, 0.9),
        stopped_by=stopped_by,
        method=method,
        samples_ms=tuple(samples_ms),
    )


def stop_reason(samples_ms: Sequence[float], elapsed_s: float, max_repeats: int = MAX_REPEATS) -> str:
    """Why no further run is timed, or "" while another one is due.

    Args:
        samples_ms: the times so far, in milliseconds.
        elapsed_s: seconds since the first of them began, clearing and synchronising included.
        max_repeats: the most runs to time.
    """
    n = len(samples_ms)
    if n >= max_repeats:
        return f"{max_repeats} runs"
    if n < MIN_REPEATS:
        return ""
    mean, _, err = _moments(samples_ms)
    if err < MAX_RELATIVE_ERROR * mean:
        return f"err/mean < {MAX_RELATIVE_ERROR}"
    if mean * n > MAX_RUNS_MS:
        return f"mean x runs > {MAX_RUNS_MS / 1000:.0f} s"
    if elapsed_s > MAX_ELAPSED_S:
        return f"{MAX_ELAPSED_S:.0f} s have gone"
    return ""


def finished(samples_ms: Sequence[float], elapsed_s: float, max_repeats: int = MAX_REPEATS) -> bool:
    """Whether the timing stops; `stop_reason` says why."""
    return bool(stop_reason(samples_ms, elapsed_s, max_repeats))


def stopped_by(samples_ms: Sequence[float], elapsed_s: float, max_repeats: int = MAX_REPEATS) -> str:
    """Why timing stopped after these samples, of somebody else's timing.

    Raises ValueError unless the rule stops after the last of them and, as far as they tell, not before: when each of
    them ended is not known, so `elapsed_s` counts for the last alone.
    """
    n = len(samples_ms)
    for runs in range(1, n):
        early = stop_reason(samples_ms[:runs], 0.0, max_repeats)
        if early:
            raise ValueError(f"{n} runs, expected {runs}: {early}")
    reason = stop_reason(samples_ms, elapsed_s, max_repeats)
    if not reason:
        raise ValueError(f"{n} runs, expected more")
    return reason


def _moments(samples: Sequence[float]) -> tuple[float, float, float]:
    """Mean, sample deviation and standard error; the latter two are 0 for a single sample."""
    std = statistics.stdev(samples) if len(samples) > 1 else 0.0
    return statistics.fmean(samples), std, std / math.sqrt(len(samples))


def _percentile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation between the two neighbours."""
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
