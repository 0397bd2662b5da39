"""A schedule is a fixed set of parameters here: values of keys, and for each statement a rank and a stage.

Statements come in the order of their ranks, but for this: none comes before one that it depends on, and none lags less
than one that it needs. So every order of ranks is an order that keeps the dependences, and the order of a schedule that
keeps them stays as it is: a schedule's own point gives a schedule with that point.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from math import prod
from operator import attrgetter
from typing import Any

from tl_attention.lab.search.groups import PLACES, as_keys
from tl_attention.lab.search.space import Space, plain
from tl_attention.program.derivation import dependences
from tl_attention.schedule.dialect import dialect_of
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.loop.loops import NUMBER, cut_like
from tl_attention.schedule.loop.table import chunk_names, whole
from tl_attention.schedule.options import CHUNK_UNIT
from tl_attention.schedule.schedule import Schedule, changed_options

# A value for each parameter, by the parameter's name.
Point = dict[str, Any]
# How parameters begin of where a statement stands and how wide it is.
OF_ORDER = ("rank.", "stage.", "width.", "begins.")
# (earlier, later, distance) of dependences: `later` of KV block k + distance needs that `earlier` of block k is done.
Needs = set[tuple[str, str, int]]


class Parameters:
    """A Parameters has the values of each parameter of a space, and both ways between points and schedules.

    Statements that are part of another one, or that run where others do, have no place of their own.
    """

    def __init__(self, space: Space, head_dim_v: int = 128, head_dim: int = 128) -> None:
        self.space, self.head_dims = space, {"rescale": head_dim_v, "mma0": head_dim}
        self.table = dialect_of(space.lowering[0]).table
        self.parts = {**self.table.fused, **dict.fromkeys(self.table.moved, "mma0")}
        self.names = tuple(
            name
            for statement in self.table.names
            if statement not in self.table.moved
            for name in (statement, *_chunks(statement, space.chunks.get(cut_like(statement), 1)))
        )

    @cached_property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values of each parameter by its name."""
        most = max(*self.space.block_N, *self.head_dims.values())
        chunks, widths = self.space.chunks, range(1, most // CHUNK_UNIT)
        return {
            **self.space.keys,
            **{f"ahead.{load}": values for load, values in self.space.ahead.items()},
            **{f"chunks.{name}": (*range(1, most + 1),) for name, most in chunks.items()},
            **{f"width.{name}": (*widths,) for cut, most in chunks.items() for name in _chunks(cut, most)[:-1]},
            # A statement has an odd one: with an even one it comes between two others.
            **{f"rank.{name}": (*range(2 * len(self.names) + 1),) for name in self.names},
            **{f"stage.{name}": (*range(self.space.stages),) for name in self.names},
            **{f"begins.{name}": (False, True) for name in self.names if self.space.groups},
            **dict.fromkeys(self.places, (None, *self.names)),
        }

    @property
    def places(self) -> tuple[str, ...]:
        """Returns the names of the parameters that say before which statement something is waited for, or released."""
        return tuple(f"{key}.{what}" for key in PLACES for what in getattr(self.space, key))

    @property
    def size(self) -> int:
        """Returns how many points there are."""
        return prod(map(len, self.values.values()))

    def drawn(self, rng: random.Random) -> Point:
        """Returns a point whose values are drawn; a place is none every other time."""
        return {
            name: None if name in self.places and rng.random() < 0.5 else rng.choice(values)
            for name, values in self.values.items()
        }

    def schedule(self, point: Mapping[str, Any], ordered: bool = True) -> Schedule:
        """Returns the schedule that a point says. Raises ValueError where it says none, with the reason.

        Unless `ordered`, ranks and stages are as they are, whatever statements depend on.
        """
        keys = Keys(**self._keys(point))
        ahead = [load for load in self.table.loads if point.get(f"ahead.{load}", True)]
        placed = [name for name in keys.statements if name in self.names and name not in ahead]
        needs = self._needs(keys, placed) if ordered else set()
        stages = self._stages(needs, {name: point[f"stage.{name}"] for name in placed})
        order = _ordered(needs, stages, {name: point[f"rank.{name}"] for name in placed})
        # A group ends where the stage changes, or where a statement begins another one.
        begun = accumulate(point.get(f"begins.{name}", False) for name in order)
        numbers = dict(zip(order, begun))
        groups = groupby(order, key=lambda name: (stages[name], numbers[name]))
        runs = [(self._whole_group([*names]), stage) for (stage, _), names in groups]
        producers = sorted(ahead, key=lambda load: point[f"rank.{load}"])
        return Schedule(**keys.model_dump() | as_keys(tuple(runs), producers))

    def point(self, schedule: Schedule, listed: bool = True) -> Point:
        """Returns a schedule's point. Raises ValueError for what the schedule has and the space has not.

        Unless its values must be `listed`, those that the space does not list are taken as they are.
        """
        order = [name for names, _ in schedule.emission for name in names if name in self.names]
        stages = {name: stage for names, stage in schedule.emission for name in names}
        found: Point = {f"ahead.{load}": load in schedule.producers for load in self.table.loads}
        first = [next((name for name in names if name in self.names), "") for names, _ in schedule.emission]
        begins = [name for before, name in pairwise(first) if stages.get(before) == stages.get(name)]
        for name in self.values:
            kind, _, rest = name.partition(".")
            if kind == "chunks":
                found[name] = len(schedule.split.columns(rest) or (0,))
            elif kind == "width":
                cut, _, number = rest.partition(".")
                columns = schedule.split.columns(cut) or ()
                found[name] = columns[int(number)] // CHUNK_UNIT if int(number) < len(columns) - 1 else 1
            elif kind == "rank":
                one_of = schedule.producers if rest in schedule.producers else order
                found[name] = 2 * one_of.index(near) + 1 if (near := _nearest(rest, one_of)) else 0
            elif kind == "stage":
                found[name] = stages[near] if (near := _nearest(rest, order)) else 0
            elif name == "threads":
                found[name] = None if schedule.threads == 2 * schedule.block_M else schedule.threads
            elif kind == "begins":
                found[name] = rest in begins
            elif kind != "ahead":
                found[name] = plain(attrgetter(name)(schedule))
        for name, value in found.items():
            # A load runs ahead unless the space says otherwise.
            values = self.values.get(name, (True,))
            if listed and value not in values:
                raise ValueError(f"{name} is {value}, expected one of {', '.join(map(str, values))}")
        keys = (*self.space.keys, *self.places, *(f"split.{cut}" for cut in self.space.chunks))
        for name, value in changed_options(schedule):
            if listed and name not in keys:
                raise ValueError(f"{name} is {value}, expected its default: the space does not list this key")
        return {name: found[name] for name in self.values}

    def _keys(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of a schedule but for group, order and stage."""
        fields: dict[str, Any] = {}
        for name in self.space.keys:
            key, _, option = name.partition(".")
            if option:
                fields.setdefault(key, {})[option] = point[name]
            else:
                fields[key] = point[name]
        widths = dict.fromkeys(self.space.chunks, fields["block_N"]) | self.head_dims
        split = {}
        for cut in self.space.chunks:
            columns: list[int] = []
            count = min(point[f"chunks.{cut}"], widths[cut] // CHUNK_UNIT)
            for name in _chunks(cut, count)[:-1]:
                # Each later chunk has columns as well.
                most = widths[cut] - sum(columns) - (count - 1 - len(columns)) * CHUNK_UNIT
                columns.append(min(point[f"width.{name}"] * CHUNK_UNIT, most))
            if columns:
                split[cut] = (*columns, widths[cut] - sum(columns))
        for name in self.places:
            key, what = name.split(".")
            fields.setdefault(key, {})[what] = _existing(point[name], split) if point[name] else None
        return fields | {"threads": fields.get("threads") or 2 * fields["block_M"], "split": split}

    def _stages(self, needs: Needs, stages: dict[str, int]) -> dict[str, int]:
        """Returns the stages, each raised until no statement works on a block before what it needs has.

        Raises ValueError where none is enough.
        """
        for _ in range(len(stages) * self.space.stages):
            short = [
                (later, least) for earlier, later, back in needs if stages[later] < (least := stages[earlier] - back)
            ]
            if not short:
                least = min(stages.values())
                return {name: stage - least for name, stage in stages.items()}
            stages |= dict(short)
        raise ValueError("stage: statements need each other in a circle")

    def _needs(self, keys: Keys, placed: Collection[str]) -> Needs:
        """Returns (earlier, later, distance) of each dependence between statements that have a place in the order."""
        found = dependences(keys.table, {load: keys.buffers(load) for load in self.table.loads})
        return {(d.earlier, d.later, d.distance) for d in found if d.earlier in placed and d.later in placed}

    def _whole_group(self, names: list[str]) -> tuple[str, ...]:
        """Returns the names with those of statements that are part of them, as source order has them."""
        found: list[str] = []
        for name in names:
            # A part goes with the first chunk.
            parts = [part for part, of in self.parts.items() if name in (of, f"{of}.0")]
            found += sorted((name, *parts), key=lambda part: NUMBER[whole(part)])
        return tuple(found)


def _ordered(needs: Needs, stages: Mapping[str, int], ranks: Mapping[str, int]) -> list[str]:
    """Returns the statements by their ranks, each behind those that it depends on in the same iteration."""
    behind: dict[str, set[str]] = {name: set() for name in stages}
    for earlier, later, back in needs:
        if earlier != later and stages[later] == stages[earlier] - back:
            behind[later].add(earlier)
    order: list[str] = []
    while behind:
        ready = [name for name, needed in behind.items() if needed.isdisjoint(behind)]
        if not ready:
            raise ValueError("order: statements of an iteration need each other in a circle")
        order.append(min(ready, key=lambda name: ranks[name]))
        del behind[order[-1]]
    return order


def _chunks(statement: str, most: int) -> tuple[str, ...]:
    """Returns the names of so many chunks of a statement; none where it is whole."""
    return chunk_names(statement, (0,) * most) if most > 1 else ()


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """Returns the statement of this name among these, or else where it would be: a chunk of the same statement, or it.

    A chunk more is behind the others, the whole where the first chunk is. None where there is nothing of it.
    """
    if name in names:
        return name
    found = [other for other in names if whole(other) == whole(name)]
    return found[-1 if "." in name else 0] if found else None


def _existing(name: str, split: Mapping[str, tuple[int, ...]]) -> str:
    """Returns the name of the statement, or of the chunk of it, that a loop has with these chunks."""
    statement, _, number = name.partition(".")
    last = len(split.get(cut_like(statement), ())) - 1
    return f"{statement}.{min(int(number or 0), last)}" if last > 0 else statement
