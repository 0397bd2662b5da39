"""A Spread has a Term for each thread: monomials whose coefficients are numbers of threads.

Sums and products by numbers are computed for all threads at once, anything else once for threads that are alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tl_attention.codeproof.terms.term import CONSTANT, Monomial, Refused, Term, term

Value = Any


class Spread:
    """A Spread is a sum of monomials of Atoms, each with an array of coefficients, one for each thread."""

    # NumPy leaves the operators to a Spread.
    __array_ufunc__ = None

    def __init__(self, parts: Mapping[Monomial, np.ndarray]):
        self.parts = parts

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def __getitem__(self, chosen: Any) -> Value:
        """Returns the Term of one thread, or the Spread of some threads."""
        if isinstance(chosen, int | np.integer):
            return Term({monomial: int(of[chosen]) for monomial, of in self.parts.items()})
        return Spread({monomial: of[chosen] for monomial, of in self.parts.items()})

    def __add__(self, other: Value) -> Value:
        parts = dict(self.parts)
        for monomial, of in parts_of(other).items():
            parts[monomial] = parts[monomial] + of if monomial in parts else np.broadcast_to(of, len(self))
        return Spread(parts)

    __radd__ = __add__

    def __neg__(self) -> Value:
        return Spread({monomial: -of for monomial, of in self.parts.items()})

    def __sub__(self, other: Value) -> Value:
        return self + -other

    def __rsub__(self, other: Value) -> Value:
        return -self + other

    def __mul__(self, other: Value) -> Value:
        if isinstance(other, Spread):
            return each(operator.mul, self, other)
        if isinstance(other, Term):
            found: Value = 0
            for monomial, of in self.parts.items():
                own = term(1) if monomial == CONSTANT else Term({monomial: 1})
                found = Spread({m: f * of for m, f in (own * other).parts.items()} or {CONSTANT: 0 * of}) + found
            return found
        return Spread({monomial: of * other for monomial, of in self.parts.items()})

    __rmul__ = __mul__


def _of_each(name: str) -> Callable[[Spread, Value], Value]:
    function = getattr(operator, name)
    return lambda self, other: each(function, self, other)


def _reversed(name: str) -> Callable[[Spread, Value], Value]:
    function = getattr(operator, name)
    return lambda self, other: each(lambda a, b: function(b, a), self, other)


for _name in ("floordiv", "mod", "lt", "le", "gt", "ge", "rshift", "lshift", "and_", "or_", "xor"):
    setattr(Spread, f"__{_name.strip('_')}__", _of_each(_name))
for _name in ("and_", "or_", "xor", "floordiv", "mod"):
    setattr(Spread, f"__r{_name.strip('_')}__", _reversed(_name))


def parts_of(value: Value) -> Mapping[Monomial, Any]:
    """Returns the coefficients of a value by monomials: numbers, or arrays of numbers of threads."""
    return value.parts if isinstance(value, Spread | Term) else {CONSTANT: value}


def numbers(value: Value) -> Value:
    """Returns a Spread whose terms are all numbers as an array of these, any other value as it is."""
    if not isinstance(value, Spread):
        return value
    parts = {monomial: of for monomial, of in value.parts.items() if monomial == CONSTANT or of.any()}
    return parts[CONSTANT] if {*parts} == {CONSTANT} else Spread(parts)


def each(function: Callable[..., Value], *values: Value) -> Spread:
    """Returns what a function has for each thread; it is asked once for threads whose values are alike."""
    columns = [
        (number, monomial, of) for number, value in enumerate(values) for monomial, of in parts_of(value).items()
    ]
    count = next(len(value) for value in values if isinstance(value, Spread | np.ndarray))
    table = np.stack([np.broadcast_to(of, count) for _, _, of in columns], axis=1)
    alike, which = np.unique(table, axis=0, return_inverse=True)
    found = []
    for row in alike.tolist():
        given: list[dict[Monomial, int]] = [{} for _ in values]
        for (number, monomial, _), factor in zip(columns, row):
            given[number][monomial] = factor
        terms = [Term(parts) for parts in given]
        found.append(function(*(one if one.constant is None else one.constant for one in terms)))
    return gathered(found, which.reshape(-1))


def ends(value: Spread) -> Iterator[Term]:
    """Yields the greatest and the smallest of terms that differ by numbers, for all threads."""
    others = [monomial for monomial in value.parts if monomial != CONSTANT]
    table = np.stack([np.zeros(len(value), dtype=np.int64), *(value.parts[one] for one in others)], axis=1)
    alike, which = np.unique(table, axis=0, return_inverse=True)
    constants = of_threads(value, len(value)).parts[CONSTANT]
    for number, row in enumerate(alike.tolist()):
        here = constants[which.reshape(-1) == number]
        for constant in {int(here.min()), int(here.max())}:
            yield Term({**dict(zip(others, row[1:])), CONSTANT: constant})


def gathered(found: Sequence[Value], which: np.ndarray) -> Spread:
    """Returns, for each thread, the one of these terms and numbers that `which` names."""
    parts: dict[Monomial, np.ndarray] = {CONSTANT: np.zeros(len(found), dtype=np.int64)}
    for number, one in enumerate(found):
        for monomial, factor in term(one).parts.items():
            parts.setdefault(monomial, np.zeros(len(found), dtype=np.int64))[number] = factor
    return Spread({monomial: of[which] for monomial, of in parts.items()})


def of_threads(value: Value, count: int) -> Spread:
    """Returns a value that may be one for all threads as one for each."""
    return Spread({m: np.broadcast_to(of, count) for m, of in {CONSTANT: 0, **parts_of(value)}.items()})


def merged(before: Value, count: int, found: Iterable[tuple[np.ndarray, Value]]) -> Spread:
    """Returns what `count` threads have that had `before`, where some of them have got another value since."""
    parts = {monomial: of.copy() for monomial, of in of_threads(before, count).parts.items()}
    for places, value in found:
        own = of_threads(value, len(places)).parts
        for monomial in {*parts, *own}:
            of = parts.setdefault(monomial, np.zeros(count, dtype=np.int64))
            of[places] = own.get(monomial, 0)
    return Spread(parts)


def split(value: Value) -> tuple[Term, np.ndarray]:
    """Returns what all threads' terms have in common, and their numbers; raises Refused where they differ in more."""
    parts = {CONSTANT: 0, **parts_of(value)}
    numbers = parts.pop(CONSTANT)
    if any((of != of[0]).any() for of in parts.values()):
        raise Refused("threads differ by more than numbers")
    return Term({monomial: int(of[0]) for monomial, of in parts.items()}), np.broadcast_to(numbers, len(value))
