"""At drawn points, where symbols have numbers, a term is looked at before the solver is asked about it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import prod

from tl_attention.codeproof.terms.term import LEAST, QUOTIENT, SYMBOL, Atom, Term

Range = tuple[float, float]
POINTS = 48
# Numbers are drawn up to 2 to the power of one of these.
BITS = 3, 8, 12, 20, 31


class Points:
    """Points have numbers for symbols within `ranges`."""

    def __init__(self, ranges: Mapping[str, Range]):
        self.ranges = ranges
        self.below: dict[str, Term] = {}  # a symbol's number is below the number of its term here
        self.terms: dict[str, Term] = {}  # symbols that are names have the numbers of these terms
        self._numbers: list[dict[str, int]] = [{} for _ in range(POINTS)]
        self._memos: list[dict[Term, int]] = [{} for _ in range(POINTS)]
        self._values: dict[Term, list[int | None]] = {}

    def values(self, of: Term) -> list[int | None]:
        """Returns a term's numbers at all points, None where it has none."""
        if of not in self._values:
            self._values[of] = [self._value(point, of) for point in range(POINTS)]
        return self._values[of]

    def _value(self, point: int, of: Term) -> int | None:
        try:
            self._draw(point, of.symbols)
            return number_of(of, self._numbers[point], self._memos[point])
        except ZeroDivisionError:
            return None

    def _draw(self, point: int, symbols: frozenset[str]) -> None:
        numbers = self._numbers[point]
        for name in sorted(symbols - numbers.keys()):
            if name in self.terms:
                self._draw(point, self.terms[name].symbols)
                numbers[name] = number_of(self.terms[name], numbers, self._memos[point])
                continue
            low, high = self.ranges[name]
            if name in self.below:
                self._draw(point, self.below[name].symbols)
                most = number_of(self.below[name], numbers, self._memos[point]) - 1
                high = min(high, max(low, most))
            rng = random.Random(f"{point} {name}")
            near = rng.random() < 0.5
            numbers[name] = drawn(rng, (low, high)) if near else rng.randint(int(low), int(min(high, 1 << 40)))


def number_of(of: Term, numbers: Mapping[str, int], memo: dict[Term, int]) -> int:
    """Returns a term's number for numbers of its symbols; raises ZeroDivisionError where a divisor is 0."""
    if of not in memo:
        parts = of.parts.items()
        memo[of] = sum(factor * prod(_of_atom(atom, numbers, memo) for atom in atoms) for atoms, factor in parts)
    return memo[of]


def _of_atom(atom: Atom, numbers: Mapping[str, int], memo: dict[Term, int]) -> int:
    if atom.kind == SYMBOL:
        return numbers[atom.name]
    value = number_of(atom.of, numbers, memo)
    if atom.kind == QUOTIENT:
        return value // number_of(atom.by, numbers, memo)
    return min(0, value) if atom.kind == LEAST else int(value >= 0)


def drawn(rng: random.Random, bounds: Range) -> int:
    """Draws a random integer within bounds: one of the bounds, or a number with a random number of bits."""
    low, high = max(bounds[0], -(1 << 31)), min(bounds[1], 1 << 31)
    size = round(2 ** (rng.random() * rng.choice(BITS)) - 1)
    return int(min(high, max(low, low + size if low > 0 else size)))
