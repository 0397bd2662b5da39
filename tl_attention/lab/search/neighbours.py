"""The space of schedules has all changes of one step, all neighbours of a schedule, and random walks.

Every schedule here is well-formed: it meets the rules that a schedule meets by itself. Other modules say whether a
schedule is legal, fits the SM and is any good. The lowering stays the same, and keys that it does not take stay away.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from pydantic import BaseModel

from tl_attention.lab.search import chunks, groups
from tl_attention.lab.search.choices import choices
from tl_attention.lab.search.groups import PLACES, Change
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.options import OPTION_KEYS
from tl_attention.schedule.schedule import Schedule

Path = tuple[str, ...]
Move = Callable[[Keys], Iterator[Change]]
# Whether a move, by its name, is one of those that are wanted.
Wanted = Callable[[str], bool]
# Keys that do not change alone: `_rows`, `_columns`.
TOGETHER = ("block_M", "threads", "block_N")


def everything(name: str) -> bool:
    """Says of every move that it is wanted."""
    return True


def listed_keys(keys: BaseModel, above: Path = ()) -> Iterator[tuple[Path, tuple[Any, ...]]]:
    """Each key whose choices can be listed, by its path, those of the mappings that are there among them."""
    for name, field in type(keys).model_fields.items():
        value = getattr(keys, name)
        if isinstance(value, BaseModel):
            yield from listed_keys(value, (*above, name))
        # A mapping that has its own default is always there; one that may be absent is a choice as well.
        if (field.default is None or not isinstance(value, BaseModel)) and len(found := choices(field)) > 1:
            yield (*above, name), found


def moves(schedule: Schedule) -> dict[str, Move]:
    """Returns the moves that a schedule can make: those of groups and of chunks by name, and those of keys by path.

    Each move yields all changes that it can make, well-formed or not.
    """
    keys = {path: values for path, values in listed_keys(schedule) if path[0] not in TOGETHER}
    before = [(key, what) for key in PLACES for what, _ in getattr(schedule, key)]
    keys |= dict.fromkeys(before, (None, *schedule.statements))
    taken = schedule.dialect.takes
    alone = [path for path in keys if path[0] not in OPTION_KEYS or taken(".".join(path))]
    return {
        **(groups.MOVES if schedule.has_program else {}),
        **(chunks.MOVES if taken("split") else {}),
        "block_M": _rows,
        "block_N": _columns,
        **{".".join(path): partial(_set, path=path, values=keys[path]) for path in alone},
    }


def neighbours(schedule: Schedule, wanted: Wanted = everything) -> Iterator[Schedule]:
    """Yields every other schedule one step away, each once, in the same order each time."""
    seen = {_as_listed(schedule)}
    for name, move in moves(schedule).items():
        for change in move(schedule) if wanted(name) else ():
            found = _changed(schedule, change)
            if found is not None and found not in seen:
                seen.add(found)
                yield found


def random_neighbour(schedule: Schedule, rng: random.Random, wanted: Wanted = everything) -> Schedule:
    """Returns another schedule one step away: a random change of a random move. Raises ValueError if there is none."""
    of_name = moves(schedule)
    names = list(filter(wanted, of_name))
    here = _as_listed(schedule)
    while names:
        name = names.pop(rng.randrange(len(names)))
        changes = list(of_name[name](schedule))
        for change in rng.sample(changes, len(changes)):
            found = _changed(schedule, change)
            if found not in (None, here):
                return found
    raise ValueError(f"{schedule.label} has no neighbour by the moves that are wanted")


def walk(schedule: Schedule, rng: random.Random, steps: int, wanted: Wanted = everything) -> Schedule:
    """Returns the schedule where a random walk of so many steps ends, which may be the schedule where it began."""
    for _ in range(steps):
        schedule = random_neighbour(schedule, rng, wanted)
    return schedule


def _changed(schedule: Schedule, change: Change) -> Schedule | None:
    """Returns the schedule with these keys changed; None where they break a rule."""
    try:
        return _as_listed(Schedule(**schedule.model_dump() | change))
    except ValueError:
        return None


def _as_listed(schedule: Schedule) -> Schedule:
    """Returns the same schedule with its groups in the one order in which the moves list them."""
    listed = groups.as_keys(schedule.emission, schedule.producers)
    if schedule.group == listed["group"]:
        return schedule
    return Schedule(**schedule.model_dump() | listed)


def _set(keys: Keys, path: Path, values: tuple[Any, ...]) -> Iterator[Change]:
    fields = keys.model_dump(include={path[0]})
    return (_nested(fields, path, value) for value in values)


def _nested(fields: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    name, *below = path
    return fields | {name: _nested(fields[name], tuple(below), value) if below else value}


def _rows(keys: Keys) -> Iterator[Change]:
    """Changes the query rows together with their threads: neither changes alone."""
    names = ("block_M", "threads")
    for values in product(*(choices(Schedule.model_fields[name]) for name in names)):
        yield dict(zip(names, values))


def _columns(keys: Keys) -> Iterator[Change]:
    """Changes the keys of a block, and the chunks of keys with them."""
    return (chunks.resized(keys, block_N) for block_N in choices(Schedule.model_fields["block_N"]))
