"""A covering design has few combinations of values, in which every pair of values occurs."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = Mapping[str, Any]
# The values of two axes, in the order of their names.
Pair = tuple[tuple[str, Any], tuple[str, Any]]
TRIES = 12


def pairs_of(row: Row) -> set[Pair]:
    """Returns the pairs of values that a row has. A value None says that the row has nothing of that axis."""
    there = sorted((name, value) for name, value in row.items() if value is not None)
    return set(combinations(there, 2))


def covering(
    axes: Mapping[str, Sequence[Any]], is_legal: Callable[[Row], bool], covered: Iterable[Pair], rng: random.Random
) -> list[dict[str, Any]]:
    """Makes rows that together have every pair of values that a legal row can have, but for pairs in `covered`.

    It is greedy: each row starts with a missing pair, and is the row of several tries that adds the most pairs.
    """
    names = sorted(axes)
    missing = {((a, x), (b, y)): None for a, b in combinations(names, 2) for x in axes[a] for y in axes[b]}
    for pair in covered:
        missing.pop(pair, None)
    for pair in [pair for pair in missing if None in (pair[0][1], pair[1][1])]:
        del missing[pair]
    rows: list[dict[str, Any]] = []
    while missing:
        start = next(iter(missing))
        tries = [row for _ in range(TRIES) if (row := _completed(dict(start), axes, is_legal, rng))]
        if not tries:
            # No legal row has it.
            del missing[start]
            continue
        best = max(tries, key=lambda row: sum(pair in missing for pair in pairs_of(row)))
        rows.append(best)
        for pair in pairs_of(best):
            missing.pop(pair, None)
    return rows


def _completed(
    row: dict[str, Any], axes: Mapping[str, Sequence[Any]], is_legal: Callable[[Row], bool], rng: random.Random
) -> dict[str, Any] | None:
    """Returns a legal row with these values, or None where many draws find none."""
    for _ in range(200):
        drawn = {name: row.get(name, rng.choice(values)) for name, values in axes.items()}
        if is_legal(drawn):
            return drawn
    return None
