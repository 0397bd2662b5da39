"""Intervals show within which bounds a term is, from the bounds of its symbols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tl_attention.codeproof.terms.points import Range
from tl_attention.codeproof.terms.term import HOLDS, LEAST, QUOTIENT, SYMBOL, Atom, Term, quotient, term

# The most that a divisor of a remainder is, of which a part may be a remainder of its own.
MOST_PARTS = 64


@dataclass(frozen=True)
class Name:
    """A Name is a symbol that stands for a long term."""

    term: Term
    range: Range  # holds where all of `made` hold
    made: tuple[Term, ...]  # the facts that held where it was made
    values: list[int | None]


@dataclass
class Intervals:
    """Intervals hold the bounds of symbols, the names of long terms, and the terms that are not negative."""

    ranges: dict[str, Range] = field(default_factory=dict)  # bounds of symbols
    names: dict[str, Name] = field(default_factory=dict)  # of long terms
    here: tuple[Term, ...] = ()  # what is not negative here
    shown: Counter[str] = field(default_factory=Counter)  # how statements were shown

    def __post_init__(self) -> None:
        # The facts that hold, and what was worked out under them.
        self._known: frozenset[Term] = frozenset()
        self._memo: dict[Any, Any] = {}

    def range(self, of: Term, depth: int = 3) -> Range:
        """Returns the least and the greatest number that a term may be, as intervals show it."""
        key = ("range", of, depth)
        if key not in self._memo:
            self._memo[key] = self._range(of, depth)
        return self._memo[key]

    def _range(self, of: Term, depth: int) -> Range:
        bounds = _sum(self._range_of(monomial, factor) for monomial, factor in of.parts.items())
        if depth and len(of.parts) > 1:
            for atom in of.atoms:
                for part, rest in self._parts(of, atom):
                    if len(rest.parts) < len(of.parts) + 2 and atom not in rest.atoms:
                        other = _sum((part, self.range(rest, depth - 1)))
                        bounds = max(bounds[0], other[0]), min(bounds[1], other[1])
        return bounds

    def _range_of(self, monomial: tuple[Atom, ...], factor: int) -> Range:
        bounds: Range = (factor, factor)
        for atom in monomial:
            bounds = _times(bounds, self.range_of_atom(atom))
        return bounds

    def range_of_atom(self, atom: Atom) -> Range:
        """Returns the least and the greatest number that an atom may be."""
        if atom.kind == SYMBOL:
            name = self.names.get(atom.name)
            if name is None:
                return self.ranges[atom.name]
            return name.range if self._known.issuperset(name.made) else self.range(name.term)
        if atom.kind == HOLDS:
            return 0, 1
        low, high = self.range(atom.of)
        if atom.kind == LEAST:
            return min(0, low), min(0, high)
        least, most = self.range(atom.by)
        if least < 1:
            return -inf, inf
        by_low, by_high = (most, least) if low >= 0 else (least, least)
        below_low = -inf if low == -inf else 0 if by_low == inf else low // by_low
        return below_low, inf if high == inf else high // by_high if high >= 0 else -1

    def _parts(self, of: Term, atom: Atom) -> Iterator[tuple[Range, Term]]:
        """Yields ranges of a part of a term that has an atom, each with the rest of the term."""
        # A part is a remainder, x - d * floor(x / d), or a greatest, x - min(0, x).
        factor = of.parts.get((atom,), 0)
        if atom.kind == QUOTIENT:
            x, by = atom.of, atom.by
            number = by.constant
            # (x div e) mod (n / e), whose quotient is that of x by n
            for e in range(2, number or 0) if factor and (number or 0) <= MOST_PARTS else ():
                if number and number % e == 0 and factor % (number // e) == 0:
                    times = -factor // (number // e)
                    rest = of - times * quotient(x, term(e)) - factor * atom.term
                    yield _times((times, times), (0, number // e - 1)), rest
            for x, by in atom.quotients:
                multiple = by * atom.term
                first, of_first = next(iter(multiple.parts.items()))
                times, beyond = divmod(-of.parts.get(first, 0), of_first)
                if times and not beyond:
                    most = self.range(by, 0)[1] - 1
                    yield _times((times, times), (0, most)), of - times * (x - multiple)
        elif atom.kind == LEAST and factor < 0:
            low, high = self.range(atom.of)
            yield _times((-factor, -factor), (max(0, low), max(0, high))), of + factor * (atom.of - atom.term)


def _sum(ranges: Any) -> Range:
    low = high = 0.0
    for own_low, own_high in ranges:
        low, high = low + own_low, high + own_high
    return low, high


def _times(a: Range, b: Range) -> Range:
    products = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(products), max(products)
