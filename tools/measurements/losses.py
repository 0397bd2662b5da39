"""A training beside SDPA's attentions is recorded and judged by pure functions of its losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tl_attention.errors import InputError
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.records import Measured

FLASH, CUDNN = "flash2", "cudnn"
NAMES = {OURS: "ours", FLASH: "SDPA's flash", CUDNN: "SDPA's cuDNN"}
# Losses are judged as means of so many steps, and may differ by so many times what flash and cuDNN do.
SMOOTHED_OVER, MOST = 20, 2.0
# Steps that are timed together, and the first of such blocks that are not counted.
BLOCK, WARM_UP_BLOCKS = 10, 2


@dataclass(frozen=True)
class TrainingRun(Measured):
    """A run is one training of a model."""

    attention: str
    problem: dict[str, Any]  # of each layer's attention
    layers: int
    rate: float
    steps: int
    losses: tuple[float, ...]  # of each step, as far as losses are finite
    block_s: tuple[float, ...] = ()  # the seconds of each BLOCK steps

    @property
    def steps_per_second(self) -> float | None:
        """Returns the steps per second of the median block after the warm-up."""
        counted = self.block_s[WARM_UP_BLOCKS:]
        return BLOCK / statistics.median(counted) if counted else None


def smoothed(losses: Sequence[float], over: int = SMOOTHED_OVER) -> list[float]:
    """Returns the mean of each `over` losses in a row; the first mean is of the first `over` losses."""
    return [statistics.fmean(losses[end - over : end]) for end in range(over, len(losses) + 1)]


@dataclass(frozen=True)
class Judged:
    """This is the judgement of one seed. Its lists have an entry for each step from SMOOTHED_OVER on."""

    seed: int
    smooth: dict[str, list[float]]  # the smoothed losses of each attention
    apart: list[float]  # the smoothed absolute difference of our loss and flash's
    allowed: list[float]  # MOST times the largest such difference of flash and cuDNN up to that step
    # The largest apart / allowed if losses are smoothed before they are subtracted. It is reported and not judged: such
    # differences cancel, also between flash and cuDNN.
    of_means: float
    spread: float  # how far apart flash's seeds end
    broken: str = ""  # which attention's loss is not finite, and where

    @property
    def outside(self) -> list[int]:
        """Returns the steps, counted from 1, at which our loss lies farther from flash's than is allowed."""
        pairs = enumerate(zip(self.apart, self.allowed, strict=True), SMOOTHED_OVER)
        return [step for step, (apart, allowed) in pairs if not apart <= allowed]

    @property
    def ends_within(self) -> bool:
        """Says whether our loss ends no farther from flash's than flash's seeds end from each other."""
        return abs(self.smooth[OURS][-1] - self.smooth[FLASH][-1]) <= self.spread

    @property
    def ok(self) -> bool:
        return not self.broken and not self.outside and self.ends_within

    @property
    def verdict(self) -> str:
        """Says the judgement in a line."""
        if self.broken:
            return f"seed {self.seed}: FAILED: {self.broken}"
        return f"seed {self.seed}: {'ok' if self.ok else 'FAILED'}: {self._said()}"

    def _said(self) -> str:
        if outside := self.outside:
            first, at = outside[0], outside[0] - SMOOTHED_OVER
            of_all = f"{len(outside)} of {len(self.apart)} steps"
            said = (
                f"at step {first} our loss is {self.apart[at]:.2g} from flash's, expected at most {self.allowed[at]:.2g}; "
                f"{of_all} are too far"
            )
        else:
            said = f"our loss is at most {_part(self.apart, self.allowed):.2f} of the allowed distance from flash's"
        end = abs(self.smooth[OURS][-1] - self.smooth[FLASH][-1])
        return (
            f"{said} (not judged: {self.of_means:.2f} with smoothed losses); the ends differ by {end:.5f}, "
            f"{'within' if self.ends_within else 'OUTSIDE of'} the {self.spread:.2g} that seeds differ by"
        )


def judged(runs: Sequence[TrainingRun]) -> list[Judged]:
    """Judges each seed. Raises InputError unless each seed has all attentions, equal in all else, and enough steps."""
    if not runs:
        raise InputError("training: no runs, expected one for each attention and seed")
    seeds: dict[int | None, dict[str, TrainingRun]] = {}
    for run in runs:
        if run.attention in seeds.setdefault(run.seed, {}):
            raise InputError(f"training: seed {run.seed} has {run.attention} twice, expected the runs of one record")
        seeds[run.seed][run.attention] = run
    for seed, of_seed in seeds.items():
        if set(of_seed) != set(NAMES):
            raise InputError(f"training: seed {seed} has {', '.join(sorted(of_seed))}, expected {', '.join(NAMES)}")
    if len({(str(run.problem), run.layers, run.rate, run.steps, run.run) for run in runs}) != 1:
        raise InputError("training: runs of several models, expected one model, one number of steps and one time")
    if runs[0].steps < SMOOTHED_OVER:
        raise InputError(
            f"training: {runs[0].steps} steps, expected at least the {SMOOTHED_OVER} that are smoothed over"
        )
    ends = [smooth[-1] for of_seed in seeds.values() if (smooth := smoothed(of_seed[FLASH].losses))]
    spread = max(ends) - min(ends) if ends else 0.0
    return [_judged(seed or 0, of_seed, spread) for seed, of_seed in seeds.items()]


def _judged(seed: int, runs: dict[str, TrainingRun], spread: float) -> Judged:
    smooth = {name: smoothed(run.losses) for name, run in runs.items()}
    short = [run for run in runs.values() if len(run.losses) < run.steps]
    broken = ", ".join(f"the loss of {run.attention} is not finite at step {len(run.losses) + 1}" for run in short)
    ours, flash, cudnn = (runs[name].losses for name in (OURS, FLASH, CUDNN))
    apart, allowed = smoothed(_apart(ours, flash)), _allowed(smoothed(_apart(flash, cudnn)))
    of_means = _part(_apart(smooth[OURS], smooth[FLASH]), _allowed(_apart(smooth[FLASH], smooth[CUDNN])))
    # A run that broke has fewer steps.
    steps = min(len(apart), len(allowed))
    return Judged(seed, smooth, apart[:steps], allowed[:steps], of_means, spread, broken)


def _apart(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(one, other)]


def _allowed(between: Sequence[float]) -> list[float]:
    return [MOST * most for most in accumulate(between, max)]


def _part(apart: Sequence[float], allowed: Sequence[float]) -> float:
    """Returns the largest distance by the allowed one, infinite if 0 is allowed and the distance is not 0."""
    return max((a / b if b else math.inf for a, b in zip(apart, allowed) if a), default=0.0)
