"""This module holds the threads that run generated code in classes: every condition so far sent a class the same way.

A class has one state. A variable whose value is the same in all of its threads is one number, any other an array with a
value for each thread. A condition, or a loop's length, that differs between the threads splits the class; behind the
condition or loop the parts are one class again.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_attention.codeproof.terms.spread import Spread, numbers, with_updates
from tl_attention.problem.warpgroup import WARP

Value = Any  # int or Term, or an array or a Spread of one value for each thread of a class
PER_THREAD = np.ndarray | Spread


@dataclass(frozen=True)
class Threads:
    """Threads are all threads of some blocks, numbered block after block, in each by y, then by x."""

    blocks: np.ndarray
    ys: int  # how many y there are, from `first_y` on
    warps: tuple[int, ...]  # those of each y that are there
    lanes: int = WARP  # 32, or 1 where the first lane of a warp stands for all of it
    first_y: int = 0
    # Of each thread; `place` is the index of its block.
    x: np.ndarray = field(init=False)
    y: np.ndarray = field(init=False)
    block: np.ndarray = field(init=False)
    place: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        lanes = np.arange(self.lanes)
        x = np.concatenate([WARP * warp + lanes for warp in self.warps])
        places = self.ys * len(x)
        object.__setattr__(self, "x", np.tile(x, len(self.blocks) * self.ys))
        object.__setattr__(self, "y", np.tile(np.repeat(self.first_y + np.arange(self.ys), len(x)), len(self.blocks)))
        object.__setattr__(self, "block", np.repeat(self.blocks, places))
        object.__setattr__(self, "place", np.repeat(np.arange(len(self.blocks)), places))

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class ThreadClass:
    """A ThreadClass is threads that all conditions so far sent the same way, and the values of their variables."""

    threads: np.ndarray  # numbers, in order
    names: dict[str, Value]

    def whole_warps(self, lanes: int) -> bool:
        """Says whether the class has all `lanes` lanes of each warp of which it has one."""
        if len(self.threads) % lanes:
            return False
        warps = self.threads.reshape(-1, lanes)
        return bool((warps[:, 0] % lanes == 0).all() and (warps[:, -1] - warps[:, 0] == lanes - 1).all())

    def part(self, chosen: np.ndarray) -> ThreadClass:
        """Returns a new class of the threads for which `chosen` is true, with variables of its own."""
        taken = {
            name: collapse(value[chosen]) if isinstance(value, PER_THREAD) else value
            for name, value in self.names.items()
        }
        return ThreadClass(self.threads[chosen], taken)

    def split(self, value: Value, idle: Container[int] = ()) -> Iterator[tuple[int, Any]]:
        """Yields each value with a class of the threads that have it, which is this class where all have the same.

        Values that are `idle` come with None.
        """
        if not isinstance(value, np.ndarray):
            yield int(value), self
            return
        for number in np.unique(value):
            yield int(number), None if number in idle else self.part(value == number)

    def rejoin(self, parts: Iterable[ThreadClass], assigned: Iterable[str]) -> None:
        """Takes over the values of the variables `assigned` from the classes that this one was split into.

        The parts together are this class, or less of it. A variable that some part does not have is unknown from here
        on.
        """
        parts = [part for part in parts if part is not self]
        if not parts:
            return
        for name in assigned:
            self._take(name, [(part.threads, part.names.get(name)) for part in parts])

    def _take(self, name: str, found: list[tuple[np.ndarray, Value]]) -> None:
        if any(value is None for _, value in found):
            self.names.pop(name, None)
            return
        first = found[0][1]
        same = all(not isinstance(value, np.ndarray) and value == first for _, value in found)
        if same and sum(len(threads) for threads, _ in found) == len(self.threads):
            self.names[name] = first
            return
        places = [(np.searchsorted(self.threads, threads), value) for threads, value in found]
        self.names[name] = collapse(numbers(with_updates(self.names.get(name, 0), len(self.threads), places)))


def collapse(value: Value) -> Value:
    """Returns an array of equal numbers as one number, and any other value unchanged."""
    if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
        return value[0].item()
    return value


def any_nonzero(value: Value) -> bool:
    """Says whether a value is not 0, for some thread."""
    return bool(value.any()) if isinstance(value, np.ndarray) else bool(value)


def _quotient(a: Value, b: Value) -> Value:
    """Returns the quotient of two integers, or of arrays of them, rounded towards 0 as in C."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        _check_divisor(b)
        return (a - np.fmod(a, b)) // b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        _check_divisor(b)
        return np.fmod(a, b)
    return a - b * _quotient(a, b)


def _check_divisor(b: Value) -> None:
    """Raises ZeroDivisionError if a divisor, or one of an array, is 0, where numpy only warns and gives a number."""
    if not np.all(b):
        raise ZeroDivisionError("integer division or modulo by zero")


def _select(condition: Value, a: Value, b: Value) -> Value:
    return np.where(condition, a, b) if isinstance(condition, np.ndarray) else a if condition else b


def _least(a: Value, b: Value) -> Value:
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def _most(a: Value, b: Value) -> Value:
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


# An expression's functions: numbers, or an array of numbers.
NUMBERS: dict[str, Any] = {
    "__builtins__": {},
    "quotient": _quotient,
    "remainder": _remainder,
    "select": _select,
    "both": lambda a, b: (a != 0) & (b != 0),
    "either": lambda a, b: (a != 0) | (b != 0),
    "equal": operator.eq,
    "unequal": operator.ne,
    "int64_t": lambda a: a,
    "negation": lambda a: np.logical_not(a) if isinstance(a, np.ndarray) else not a,
    "min": _least,
    "max": _most,
}
