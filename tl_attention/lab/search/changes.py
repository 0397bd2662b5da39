"""A change of a schedule gives one of its parameters another value, in the space of all schedules of its lowering.

What comes of it is well-formed, and legal or not: nothing is repaired. A shift has all statements from one on work on
another block, which takes a change of many parameters.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection, Iterable

from tl_attention.lab.search.parameters import OF_ORDER, Parameters, Point
from tl_attention.lab.search.space import whole as whole_space
from tl_attention.schedule.loop.loops import NUMBER
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.schedule import Schedule

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
    here = parameters.schedule(point, ordered=False)
    names = list(filter(wanted, effective(point, {*schedule.statements})))
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


def effective(names: Iterable[str], placed: Collection[str]) -> list[str]:
    """Returns the parameters that say something of a schedule with these statements: not those of other chunks."""
    return [name for name in names if not name.startswith(OF_ORDER) or name.partition(".")[2] in placed]


def shifted(point: Point, parameters: Parameters, first: str, stages: int) -> Point:
    """Returns a point where all statements from the first on, as source order has them, lag by so many stages more."""
    later = [name for name in parameters.names if NUMBER[whole(name)] >= NUMBER[whole(first)]]
    most = parameters.space.stages - 1
    return point | {f"stage.{name}": min(max(point[f"stage.{name}"] + stages, 0), most) for name in later}


def parameters_of(schedule: Schedule) -> Parameters:
    """Returns the parameters of all schedules of a schedule's lowering, for the head size that its chunks say."""
    of_head = (sum(columns) if (columns := schedule.split.columns(name)) else 128 for name in ("rescale", "mma0"))
    return _parameters(schedule.lowering, *of_head)


@functools.cache
def _parameters(lowering: str, head_dim_v: int, head_dim: int) -> Parameters:
    return Parameters(whole_space(lowering), head_dim_v, head_dim)
