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
        for monomial, of in coefficients_of(other).items():
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
            return apply(operator.mul, self, other)
        if isinstance(other, Term):
            total: Value = 0
            for monomial, of in self.parts.items():
                single = term(1) if monomial == CONSTANT else Term({monomial: 1})
                total = Spread({m: f * of for m, f in (single * other).parts.items()} or {CONSTANT: 0 * of}) + total
            return total
        return Spread({monomial: of * other for monomial, of in self.parts.items()})

    __rmul__ = __mul__


def _of_each(name: str) -> Callable[[Spread, Value], Value]:
    function = getattr(operator, name)
    return lambda self, other: apply(function, self, other)


def _reversed(name: str) -> Callable[[Spread, Value], Value]:
    function = getattr(operator, name)
    return lambda self, other: apply(lambda a, b: function(b, a), self, other)


for _name in ("floordiv", "mod", "lt", "le", "gt", "ge", "rshift", "lshift", "and_", "or_", "xor"):
    setattr(Spread, f"__{_name.strip('_')}__", _of_each(_name))
for _name in ("and_", "or_", "xor", "floordiv", "mod"):
    setattr(Spread, f"__r{_name.strip('_')}__", _reversed(_name))


def coefficients_of(value: Value) -> Mapping[Monomial, Any]:
    """Returns the coefficient of each monomial of a value, a number or an array with a number for each thread."""
    return value.parts if isinstance(value, Spread | Term) else {CONSTANT: value}


def numbers(value: Value) -> Value:
    """Returns a Spread whose terms are all numbers as an array of these, any other value as it is."""
    if not isinstance(value, Spread):
        return value
    parts = {monomial: of for monomial, of in value.parts.items() if monomial == CONSTANT or of.any()}
    return parts[CONSTANT] if {*parts} == {CONSTANT} else Spread(parts)


def apply(function: Callable[..., Value], *values: Value) -> Spread:
    """Returns the Spread of a function's results for each thread; threads with equal values share one call."""
    # Most of what threads have are numbers, which need no Term.
    columns = [(parts := coefficients_of(value), {*parts} == {CONSTANT}) for value in values]
    count = next(len(value) for value in values if isinstance(value, Spread | np.ndarray))
    table = np.stack([np.broadcast_to(of, count) for parts, _ in columns for of in parts.values()], axis=1)
    alike, which = np.unique(table, axis=0, return_inverse=True)
    results = []
    for row in alike.tolist():
        factors = iter(row)
        given = [next(factors) if plain else Term(dict(zip(parts, factors))) for parts, plain in columns]
        results.append(function(*(x if isinstance(x, int) or x.constant is None else x.constant for x in given)))
    return take_per_thread(results, which.reshape(-1))


def extremes(value: Spread) -> Iterator[Term]:
    """Yields, of all threads' Terms, the smallest and the greatest of those that differ only by a number."""
    others = [monomial for monomial in value.parts if monomial != CONSTANT]
    table = np.stack([np.zeros(len(value), dtype=np.int64), *(value.parts[one] for one in others)], axis=1)
    alike, which = np.unique(table, axis=0, return_inverse=True)
    constants = broadcast(value, len(value)).parts[CONSTANT]
    for number, row in enumerate(alike.tolist()):
        here = constants[which.reshape(-1) == number]
        for constant in {int(here.min()), int(here.max())}:
            yield Term({**dict(zip(others, row[1:])), CONSTANT: constant})


def take_per_thread(found: Sequence[Value], which: np.ndarray) -> Spread:
    """Returns the Spread that has, for thread i, the term or number of index `which[i]`."""
    parts: dict[Monomial, np.ndarray] = {CONSTANT: np.zeros(len(found), dtype=np.int64)}
    for number, one in enumerate(found):
        for monomial, factor in term(one).parts.items():
            parts.setdefault(monomial, np.zeros(len(found), dtype=np.int64))[number] = factor
    return Spread({monomial: of[which] for monomial, of in parts.items()})


def broadcast(value: Value, count: int) -> Spread:
    """Returns any value as a Spread of `count` threads; one value for all is repeated for each."""
    return Spread({m: np.broadcast_to(of, count) for m, of in {CONSTANT: 0, **coefficients_of(value)}.items()})


def with_updates(before: Value, count: int, found: Iterable[tuple[np.ndarray, Value]]) -> Spread:
    """Returns a Spread of `before` for `count` threads, in which some threads have got another value."""
    parts = {monomial: of.copy() for monomial, of in broadcast(before, count).parts.items()}
    for places, value in found:
        changed = broadcast(value, len(places)).parts
        for monomial in {*parts, *changed}:
            of = parts.setdefault(monomial, np.zeros(count, dtype=np.int64))
            of[places] = changed.get(monomial, 0)
    return Spread(parts)


def split_common(value: Value) -> tuple[Term, np.ndarray]:
    """Returns the Term that all threads have in common, and each one's number added to it; else raises Refused."""
    parts = {CONSTANT: 0, **coefficients_of(value)}
    numbers = parts.pop(CONSTANT)
    if any((of != of[0]).any() for of in parts.values()):
        raise Refused("threads differ by more than numbers")
    return Term({monomial: int(of[0]) for monomial, of in parts.items()}), np.broadcast_to(numbers, len(value))
