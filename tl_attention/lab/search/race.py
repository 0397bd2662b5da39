"""Two kernels race on the logarithms of their paired times, by an exact signed-rank test that looks a few times only.

Each number is log(time of the incumbent / time of the candidate) of one round, in which both were timed one after the
other: positive where the candidate is faster. The test is Wilcoxon's of 1945, with the midranks of Pratt's tables for
ties; zeros are left out. It asks nothing of the distribution but that it is symmetric where both are equally fast.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Literal

Verdict = Literal["faster", "slower", "level", "undecided"]
# The test looks after so many rounds, and shares its error among these looks; behind the last nothing is decided.
LOOKS = (7, 10, 14, 19, 25)
ERROR = 0.05


def verdict(ratios: Sequence[float]) -> Verdict:
    """Returns what is decided after these rounds, of which there may be one of LOOKS; elsewhere it is undecided.

    A candidate that is as fast as the incumbent is called faster, or slower, with a probability of at most ERROR each.
    """
    if len(ratios) not in LOOKS:
        return "undecided"
    for name, sign in (("faster", 1), ("slower", -1)):
        if p_value([sign * ratio for ratio in ratios]) <= ERROR / len(LOOKS):
            return name  # type: ignore[return-value]
    return "level" if len(ratios) == LOOKS[-1] else "undecided"


def p_value(ratios: Sequence[float]) -> float:
    """Returns the chance that so large a sum of positive ranks, or a larger one, comes by chance.

    That is the one-sided p-value of Wilcoxon's signed-rank test, exact also with ties. The time grows with the
    third power of how many numbers there are: for 25 it is a millisecond.
    """
    kept = sorted((ratio for ratio in ratios if ratio != 0), key=abs)
    doubled = _doubled_ranks(tuple(map(abs, kept)))
    found = sum(rank for rank, ratio in zip(doubled, kept) if ratio > 0)
    ways = _ways(doubled)
    return sum(count for total, count in ways.items() if total >= found) / 2 ** len(kept)


def _doubled_ranks(sizes: tuple[float, ...]) -> tuple[int, ...]:
    """Returns twice the rank of each size, in ascending order; equal ones have the mean of their ranks."""
    first, count = {size: number for number, size in reversed([*enumerate(sizes, 1)])}, Counter(sizes)
    return tuple(2 * first[size] + count[size] - 1 for size in sizes)


@functools.cache
def _ways(ranks: tuple[int, ...]) -> Counter[int]:
    """Returns how many choices of signs give each sum of the positive ranks."""
    found = Counter({0: 1})
    for rank in ranks:
        with_it = Counter({total + rank: count for total, count in found.items()})
        found = found + with_it
    return found
