"""The contract's rule for when the timing of a test stops. This file stands beside the submission too."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

MAX_REPEATS = 100
# The public harness looks at its samples from the third on.
MIN_REPEATS = 3
MAX_RELATIVE_ERROR = 0.001
MAX_RUNS_MS = 10_000.0
MAX_ELAPSED_S = 120.0


def stop_reason(samples_ms: Sequence[float], elapsed_s: float) -> str:
    """Why no further run is timed after these, or "" while another one is due.

    `elapsed_s` counts from the start of the first run, clearing and synchronising included.
    """
    n = len(samples_ms)
    if n >= MAX_REPEATS:
        return f"{MAX_REPEATS} runs"
    if n < MIN_REPEATS:
        return ""
    mean = statistics.fmean(samples_ms)
    if statistics.stdev(samples_ms) / math.sqrt(n) < MAX_RELATIVE_ERROR * mean:
        return f"err/mean < {MAX_RELATIVE_ERROR}"
    if mean * n > MAX_RUNS_MS:
        return f"mean x runs > {MAX_RUNS_MS / 1000:.0f} s"
    return f"{MAX_ELAPSED_S:.0f} s have gone" if elapsed_s > MAX_ELAPSED_S else ""
