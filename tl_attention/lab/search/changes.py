"""A change of a schedule gives one of its parameters another value, in the space of all schedules of its lowering.

What comes of it is well-formed, and legal or not: nothing is repaired.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

from tl_attention.lab.search.parameters import Parameters
from tl_attention.lab.search.space import whole
from tl_attention.schedule.schedule import Schedule

# Parameters of one statement, by what stands before its name.
OF_STATEMENTS = ("rank", "stage", "begins", "width")
# Whether a parameter, by its name, is one of those that are wanted.
Wanted = Callable[[str], bool]


def everything(name: str) -> bool:
    """Says of every parameter that it is wanted."""
    return True


def walk(schedule: Schedule, rng: random.Random, steps: int, wanted: Wanted = everything) -> Schedule:
    """Returns the schedule where a random walk of so many changes ends, which may be the schedule where it began."""
    for _ in range(steps):
        schedule = changed(schedule, rng, wanted)
    return schedule


def changed(schedule: Schedule, rng: random.Random, wanted: Wanted = everything) -> Schedule:
    """Returns another schedule, in which one parameter has another value. Raises ValueError if there is none."""
    parameters = parameters_of(schedule)
    point = parameters.point(schedule, listed=False)
    here, placed = parameters.schedule(point, ordered=False), {*schedule.statements}
    # What is said of chunks that there are not changes nothing.
    there = [name for name in point if name.partition(".")[0] not in OF_STATEMENTS or name.partition(".")[2] in placed]
    names = list(filter(wanted, there))
    while names:
        name = names.pop(rng.randrange(len(names)))
        values = parameters.values[name]
        for value in rng.sample(values, len(values)):
            try:
                found = parameters.schedule(point | {name: value}, ordered=False)
            except ValueError:
                continue
            if found != here:
                return found
    raise ValueError(f"{schedule.label} has no neighbour by the parameters that are wanted")


def parameters_of(schedule: Schedule) -> Parameters:
    """Returns the parameters of all schedules of a schedule's lowering, for the head size that its chunks say."""
    of_head = (sum(columns) if (columns := schedule.split.columns(name)) else 128 for name in ("rescale", "mma0"))
    return _parameters(schedule.lowering, *of_head)


@functools.cache
def _parameters(lowering: str, head_dim_v: int, head_dim: int) -> Parameters:
    return Parameters(whole(lowering), head_dim_v, head_dim)
