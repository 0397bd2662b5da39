"""Training steps with several attentions take turns, and are recorded and compared by the median of paired ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from tl_attention.lab.measure.records import Measured, Positive

# Attentions of a record: SDPA as it is, and ours with the backward by rule.
SDPA, RULE = "sdpa", "rule"


@dataclass(frozen=True)
class Steps(Measured):
    """A Steps has the times of one attention's blocks of training steps, which took turns with other attentions'."""

    model: str  # what was trained
    attention: str
    problem: dict[str, Any]  # of each layer's attention
    layers: int
    steps: Annotated[int, Field(gt=0)]
    block_s: tuple[Positive, ...]
    seqs: tuple[int, ...] = ()  # the lengths of blocks whose lengths differ: then the problem is the longest
    seen: tuple[str, ...] = ()  # the attention's operators and kernels that a profiler saw in one step
    plan_ms: tuple[float, ...] = ()  # how much longer a new shape's first backward takes than a later one

    @property
    def step_ms(self) -> float:
        """Returns the milliseconds of a step of the median block."""
        return 1e3 * statistics.median(self.block_s) / self.steps


def ratios(rows: Sequence[Steps], to: str) -> dict[str, float]:
    """Returns the times of attentions as parts of the time of the one named `to`: medians over rounds, without `to`."""
    by_name = {row.attention: row for row in rows}
    other = by_name.pop(to)
    return {
        name: statistics.median(a / b for a, b in zip(row.block_s, other.block_s, strict=True))
        for name, row in by_name.items()
    }


def seconds(run: Callable[[], object], device: str) -> float:
    """Returns how long the host waits until what `run` starts on the device has ended."""
    import torch

    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    run()
    synchronize()
    return round(time.perf_counter() - start, 6)
