"""Lists everything that one step can change about the chunks of split statements; `groups.py` does it for groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tl_attention.lab.search.groups import PLACES, Change, as_keys
from tl_attention.problem.head_dims import DEFAULT_HEAD_DIMS, sizes_of
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.loop.attention import FRAGMENTS, SOURCE, SPLITTABLE
from tl_attention.schedule.loop.table import chunk_names
from tl_attention.schedule.options import CHUNK_UNIT

# Numbers of chunks.
Numbers = tuple[int, ...]
# Chunks of these statements have block_N keys together; chunks of the other statements have head_dim columns.
OF_KEYS = (*(name for name, buffers in SOURCE.splittable.items() if "acc_s" in buffers), "mma1")


def _splittable(keys: Keys) -> list[str]:
    return [name for name in SPLITTABLE if keys.dialect.takes(f"split.{name}")]


def cut(keys: Keys) -> Iterator[Change]:
    """Cuts a chunk, or a whole statement, into two chunks, one right after the other."""
    for statement in _splittable(keys):
        for columns in _columns(keys, statement):
            for index, width in enumerate(columns):
                becomes: list[Numbers] = [(n + (n > index),) for n in range(len(columns))]
                becomes[index] = (index, index + 1)
                for first in range(CHUNK_UNIT, width, CHUNK_UNIT):
                    wanted = (*columns[:index], first, width - first, *columns[index + 1 :])
                    yield _recut(keys, statement, wanted, becomes)


def merge(keys: Keys) -> Iterator[Change]:
    """Merges two neighbouring chunks into one, at the place of the first."""
    for statement in _splittable(keys):
        columns = keys.split.columns(statement) or ()
        for index in range(len(columns) - 1):
            becomes: list[Numbers] = [(n - (n > index),) for n in range(len(columns))]
            becomes[index + 1] = ()
            wanted = (*columns[:index], columns[index] + columns[index + 1], *columns[index + 2 :])
            yield _recut(keys, statement, wanted, becomes)


def shift(keys: Keys) -> Iterator[Change]:
    """Moves columns from one of two neighbouring chunks to the other."""
    for statement in _splittable(keys):
        columns = keys.split.columns(statement) or ()
        for index in range(len(columns) - 1):
            for step in (-CHUNK_UNIT, CHUNK_UNIT):
                wanted = list(columns)
                wanted[index] += step
                wanted[index + 1] -= step
                if min(wanted) > 0:
                    yield {"split": keys.split.model_dump() | {statement: tuple(wanted)}}


def resized(keys: Keys, block_N: int) -> Change:
    """Changes block_N, and with it the last chunk of each statement that is cut into chunks of keys."""
    more = block_N - keys.block_N
    cut = {name: columns for name in OF_KEYS if (columns := keys.split.columns(name))}
    wanted = {name: (*columns[:-1], columns[-1] + more) for name, columns in cut.items()}
    return {"block_N": block_N, "split": keys.split.model_dump() | wanted}


def _columns(keys: Keys, statement: str) -> list[tuple[int, ...]]:
    """Returns the columns of a statement's chunks; a whole one may have those of any head_dim."""
    if columns := keys.split.columns(statement):
        return [columns]
    return [(keys.block_N,)] if statement in OF_KEYS else [sizes_of(size)[1:] for size in DEFAULT_HEAD_DIMS]


def _recut(keys: Keys, statement: str, wanted: Sequence[int], becomes: Sequence[Numbers]) -> Change:
    """Cuts a statement into chunks of these columns; `becomes` has, for each old chunk, the numbers of the new ones."""
    columns = tuple(wanted) if len(wanted) > 1 else None
    names: dict[str, tuple[str, ...]] = {}
    before: dict[str, str] = {}
    for cut_too in (statement, *(fragment for fragment, product in FRAGMENTS.items() if product == statement)):
        old, new = chunk_names(cut_too, keys.split.columns(statement)), chunk_names(cut_too, columns)
        for number, (name, numbers) in enumerate(zip(old, becomes)):
            names[name] = tuple(new[number] for number in numbers)
            # A place before a chunk that is no more is one before the chunk that it became part of.
            before[name] = names[name][0] if numbers else new[becomes[number - 1][0]]
    placed = tuple(
        (group, stage)
        for statements, stage in keys.emission
        if (group := tuple(part for name in statements for part in names.get(name, (name,))))
    )
    places = {key: {what: before.get(name, name) for what, name in getattr(keys, key)} for key in PLACES}
    return {"split": keys.split.model_dump() | {statement: columns}, **as_keys(placed, keys.producers), **places}


MOVES: dict[str, Callable[[Keys], Iterator[Change]]] = {f.__name__: f for f in (cut, merge, shift)}
