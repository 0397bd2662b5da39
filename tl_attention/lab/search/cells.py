"""A rule of defaults.yaml serves several problems: what counts is the geometric mean, and the worst problem is bounded.

Each number of a problem is log(time of the first that was timed / a schedule's time). Where no schedule is near the
best in all of them, the problems are split by their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import sub
from statistics import fmean
from typing import NamedTuple

from tl_attention.lab.measure.candidate import Candidate, called
from tl_attention.problem.head_dims import tile_size
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.conditions import FLAGS, Case

# How far behind the best of a problem another schedule may be there, and what a second one must be worth in the mean.
WORST, WORTH = 0.03, 0.005
Numbers = Sequence[float]


def each(candidate: Candidate, others: Sequence[AttentionShape]) -> list[Candidate]:
    """Returns a candidate's kernels for its own problem and these others."""
    return [candidate, *(called(candidate.name, shape, candidate.ours) for shape in others)]


def excess(own: Numbers, before: Numbers, others: Sequence[Numbers]) -> float:
    """Returns by how much the worst problem of a schedule passes its bound, 0.0 or less where it does not.

    The bound is WORST behind the best that was timed there, or where the schedule before is if that is further behind.
    """
    known = [*map(max, zip(before, *others))]
    return max(map(sub, map(max, own, known), own)) - max(WORST, *map(sub, known, before))


class Split(NamedTuple):
    """A Split has two schedules, by their places, of which the second serves problems of so many keys and more."""

    first: int
    second: int
    from_keys: int
    worth: float  # in the geometric mean of all problems, as a logarithm


def split(timed: Sequence[Numbers], shapes: Sequence[AttentionShape]) -> Split | None:
    """Returns the split of the problems by their numbers of keys that is worth most, None where none is worth WORTH.

    `timed` has for each schedule a number of each problem.
    """
    lengths = sorted({shape.seq_kv for shape in shapes}) if timed else []
    alone = max(map(fmean, timed), default=0.0)
    found = []
    for keys in lengths[1:]:
        sides = [[n for n, shape in enumerate(shapes) if (shape.seq_kv < keys) == short] for short in (True, False)]
        sums = [[sum(of[n] for n in side) for of in timed] for side in sides]
        first, second = (of.index(max(of)) for of in sums)
        found.append(Split(first, second, keys, sum(map(max, sums)) / len(shapes) - alone))
    return max((one for one in found if one.worth >= WORTH), key=lambda one: one.worth, default=None)


def rule(shapes: Sequence[AttentionShape], schedule: str, record: str) -> list[str]:
    """Returns the lines of defaults.yaml that have a schedule serve calls such as these problems."""
    cases, keys = [*map(Case.of, shapes)], [shape.seq_kv for shape in shapes]
    conditions = {
        "head_dims": f"[{tile_size(cases[0].head_size)}]",
        "dtypes": f"[{', '.join(dict.fromkeys(case.dtype for case in cases))}]",
        "masks": f"[{', '.join(dict.fromkeys(case.mask for case in cases))}]",
        "seq_kv": f"{min(keys)} to {max(keys)}",
    }
    for flag in FLAGS:
        if len(of := {case.facts[flag] for case in cases}) == 1:
            conditions[flag] = str(of.pop()).lower()
    conditions |= {"schedule": schedule, "why": "a search found it for these problems", "record": record}
    return [f"{'    ' if n else '  - '}{key}: {text}" for n, (key, text) in enumerate(conditions.items())]


def mean_ms(times: Iterable[float]) -> float:
    """Returns the geometric mean of times."""
    return math.exp(fmean(map(math.log, times)))
