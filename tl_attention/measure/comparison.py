"""What a comparison of two kernels is: ratios of times that were sampled one right after the other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Comparison:
    """A candidate against an incumbent, sampled in turn in one process, which of them first changing with each round.

    `ratios` are the candidate's time as a part of the incumbent's, medians of one round's calls, a ratio for each
    round: below 1 the candidate was faster. The clock that both ran at in a round falls out of its ratio. `incumbent`
    is its label, a peer's name; `fingerprint` that of its code, None of a peer.
    """

    incumbent: str
    fingerprint: str | None
    ratios: tuple[float, ...]

    @classmethod
    def of(
        cls, incumbent: str, fingerprint: str | None, ours_ms: Sequence[float], theirs_ms: Sequence[float]
    ) -> Comparison:
        """Of one time of each per round."""
        return cls(incumbent, fingerprint, tuple(ours / theirs for ours, theirs in zip(ours_ms, theirs_ms)))

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Two of the ratios between which the median lies with 95 %, whatever their distribution.

        None of fewer than 6 rounds, which cannot tell. Rounds count as independent.
        """
        skipped = _skipped(len(self.ratios))
        if skipped is None:
            return None
        ranked = sorted(self.ratios)
        return ranked[skipped], ranked[-1 - skipped]

    @property
    def is_faster(self) -> bool:
        """Whether the candidate is faster by more than the rounds differ."""
        return self.interval is not None and self.interval[1] < 1.0


def _skipped(rounds: int) -> int | None:
    """How many of the smallest, and of the largest, of so many values can be left out: order statistics.

    The median lies outside of what remains where at most that many values, of a fair coin each, fall on one side.
    """
    outside, skipped = 0.0, None
    for count in range(rounds // 2):
        outside += 2 * comb(rounds, count) / 2**rounds
        if outside > 1 - CONFIDENCE:
            break
        skipped = count
    return skipped
