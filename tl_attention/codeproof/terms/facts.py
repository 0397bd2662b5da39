"""Facts are what holds of the symbols of terms at one place of the code: their bounds, and terms that are not negative.

Within them terms become simpler, and statements are shown: by form, by intervals, or by the solver. What none of these
shows is refused.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd, inf
from typing import Any

from tl_attention.codeproof.terms.choices import chosen
from tl_attention.codeproof.terms.intervals import Intervals, Name
from tl_attention.codeproof.terms.points import POINTS, Points, drawn, number_of
from tl_attention.codeproof.terms.solver import Solver
from tl_attention.codeproof.terms.term import (
    CONSTANT,
    HOLDS,
    LEAST,
    QUOTIENT,
    SYMBOL,
    Atom,
    Refused,
    Term,
    is_not_negative,
    negative_part,
    quotient,
    symbol,
    term,
)
from tl_attention.problem.bounds import LARGEST

ZERO, NOT_NEGATIVE = "= 0", ">= 0"
# Facts hold at so many drawn points, if what is seen there counts.
SOME_POINTS = 3
# A term's words are at most so long, or have names in them.
MOST_WORDS = 240
# The solver is asked first whether a term with so many more fits 32 bits: more than a KV block has rows.
SOME_ROWS = 256
# Conditions are looked at one by one in terms of so many atoms.
MOST_CASES = 6
# Terms of more monomials get a name, and those of products.
SHORT = 2


class Facts(Intervals):
    """Facts are Intervals that make terms simpler, name them, and show statements about them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._memos: dict[tuple[Term, ...], dict[Any, Any]] = {(): self._memo}
        self.points = Points(self.ranges)
        self.solver = Solver(self)
        # What is not negative at all sizes within bounds; it is asked for where results must fit.
        self.bounds: dict[Term, None] = {}
        self._bounds_of: dict[Atom, list[Term]] = defaultdict(list)
        # Symbols that may be any number from one term to another, whatever other symbols are.
        self.between: dict[str, tuple[Term, Term]] = {}

    def bound(self, of: Term) -> None:
        """Adds a term that is not negative, for the checks that results fit their types."""
        if of not in self.bounds:
            self.bounds[of] = None
            for atom in of.atoms:
                self._bounds_of[atom].append(of)

    def symbol(self, name: str, low: float = -inf, high: float = inf, below: Term | None = None) -> Term:
        """Returns the symbol of this name, whose bounds are these wherever it stands.

        At drawn points its number is smaller than the one of `below`, so that more of the points are of use.
        """
        if below is not None:
            self.points.below[name] = below
        if self.ranges.setdefault(name, (low, high)) != (low, high):
            raise AssertionError(f"{name} has the bounds {self.ranges[name]}, and now {low, high}")
        return term(int(low)) if low == high else symbol(name)

    @contextmanager
    def assuming(self, *facts: Term | int) -> Iterator[None]:
        """Holds these terms to be not negative, within a `with`."""
        before = self.here
        self.move((*before, *(fact for fact in map(term, facts) if fact not in self._known)))
        try:
            yield
        finally:
            self.move(before)

    def move(self, here: tuple[Term, ...]) -> None:
        """Replaces the terms that are known to be not negative by these."""
        self.here, self._known = here, frozenset(here)
        self._memo = self._memos.setdefault(here, {})

    # --- signs ---------------------------------------------------------------------------------------------------

    def not_negative(self, of: Term) -> bool:
        """Says whether intervals, and at most one fact, show that a term is not negative."""
        return self.range(of)[0] >= 0 or any(self.range(of - fact)[0] >= 0 for fact in self.here)

    def sign(self, of: Term, least: int = 0) -> int:
        """Returns 1 if a term is >= 0 for all values, -1 if it is <= -`least` for all, 0 if neither is shown."""
        key = ("sign", of, least)
        if key not in self._memo:
            # What was shown from fewer facts holds here, too.
            before = (self._memos.get(self.here[:number], {}).get(key, 0) for number in range(len(self.here)))
            self._memo[key] = next(filter(None, before), 0) or self._sign(of, least)
        return self._memo[key]

    def _sign(self, of: Term, least: int) -> int:
        for sign, statement in ((1, of), (-1, -of - least)):
            if self.not_negative(statement):
                return sign
        values = [value for value in self.values(of) if value is not None]
        for sign, statement in ((1, of), (-1, -of - least)) if len(values) >= SOME_POINTS else ():
            if all(sign * value >= (least if sign < 0 else 0) for value in values) and self.solver.shows(
                statement, NOT_NEGATIVE
            ):
                return sign
        return 0

    # --- simpler terms -------------------------------------------------------------------------------------------

    def simpler(self, of: Term | int) -> Term:
        """Returns a term that is equal to this one here, in simpler form."""
        of = term(of)
        key = ("simpler", of)
        if key not in self._memo:
            self._memo[key] = of.rebuilt(self._atom)
        return self._memo[key]

    def _atom(self, atom: Atom) -> Term:
        key = ("atom", atom)
        if key not in self._memo:
            self._memo[key] = self._simpler_atom(atom)
        return self._memo[key]

    def _simpler_atom(self, atom: Atom) -> Term:
        if atom.kind == SYMBOL:
            low, high = self.range_of_atom(atom)
            return term(int(low)) if low == high else atom.term
        of = self.simpler(atom.of)
        if atom.kind == QUOTIENT:
            by = self.simpler(atom.by)
            return quotient(of, by).rebuilt(lambda made: self._quotient(made) if made.kind == QUOTIENT else made.term)
        if atom.kind == LEAST:
            sign = self.sign(of)
            return term(0) if sign > 0 else of if sign < 0 else negative_part(of)
        sign = self.sign(of, 1)
        if sign:
            return term(int(sign > 0))
        by_cases = self._by_cases(of, is_not_negative)
        return is_not_negative(of) if by_cases is None else by_cases

    def _quotient(self, atom: Atom) -> Term:
        of, by = atom.of, atom.by
        low, high = self.range(of)
        number = by.constant
        if number is None:
            if self.sign(of) > 0 and self.sign(by - 1 - of) > 0:
                return term(0)
            return term(-1) if self.not_negative(-of - 1) and self.not_negative(of + by) else atom.term
        if -inf < low and high < inf and low // number == high // number:
            return term(int(low // number))
        by_cases = self._by_cases(of, lambda of: quotient(of, by))
        if by_cases is not None:
            return by_cases
        return self.simpler(is_not_negative(of)) - 1 if -number <= low and high < number else atom.term

    def _by_cases(self, of: Term, function: Callable[[Term], Term]) -> Term | None:
        """Returns a function of a term by two cases of one of its conditions, None unless it is a number in both."""
        for atom in of.atoms if len(of.atoms) <= MOST_CASES else ():
            if atom.kind == HOLDS or self.range_of_atom(atom) == (0, 1):
                cases = (of.rebuilt({atom: term(at)}.get) for at in (1, 0))
                values = [self.simpler(function(case)).constant for case in cases]
                if None not in values:
                    return chosen(atom.term, term(values[0] or 0), term(values[1] or 0))
        return None

    # --- drawn points --------------------------------------------------------------------------------------------

    def values(self, of: Term) -> list[int | None]:
        """Returns a term's numbers at drawn points, None where these facts do not hold."""
        return [value if holds else None for value, holds in zip(self.points.values(of), self._there())]

    def _there(self) -> list[bool]:
        """Says at which points the facts hold."""
        if "there" not in self._memo:
            facts = [self.points.values(fact) for fact in self.here]
            self._memo["there"] = [all(value is not None and value >= 0 for value in at) for at in zip(*facts)]
            self._memo["there"] = self._memo["there"] or [True] * POINTS
        return self._memo["there"]

    # --- names ---------------------------------------------------------------------------------------------------

    def named(self, of: Term | int) -> Term:
        """Returns a short term that is equal to this one here: a new symbol in the place of a long one.

        Terms that are shown to be equal have one name.
        """
        of = self.simpler(of)
        by_term = any(atom.kind == QUOTIENT and atom.by.constant is None for atom in of.atoms)
        if (len(of.parts) <= 1 and _short(of) and not by_term) or of.constant is not None:
            return of
        values, there = self.points.values(of), self._there()
        for name, known in self.names.items():
            if self._known.issuperset(known.made):
                pairs = [(a, b) for a, b, here in zip(values, known.values, there) if here]
                # Terms that may be 0 always would be one with multiples of each other.
                alike = any(a for a, _ in pairs) and all(a == b for a, b in pairs)
                if known.term == of or (alike and self.is_zero(symbol(name) - of)):
                    return symbol(name)
        if _short(of):
            return of
        name = f"v{len(self.names)}"
        low, high = self.range(of)
        here = [value for value, there in zip(values, there) if there and value is not None]
        for bound in (1, 0) if low < 1 else ():
            if low < bound and (not here or min(here) >= bound) and self.solver.shows(of - bound, NOT_NEGATIVE):
                low = bound
        self.names[name] = Name(of, (low, high), self.here, values)
        self.points.terms[name] = of
        return symbol(name)

    def unnamed(self, of: Term) -> Term:
        """Returns the term without names."""
        key = ("unnamed", of)
        if key not in self._memo:
            self._memo[key] = of.rebuilt(self._unnamed)
        return self._memo[key]

    def _unnamed(self, atom: Atom) -> Term:
        if atom.kind == SYMBOL:
            return self.unnamed(self.names[atom.name].term) if atom.name in self.names else atom.term
        of = self.unnamed(atom.of)
        if atom.kind == QUOTIENT:
            return quotient(of, self.unnamed(atom.by))
        return negative_part(of) if atom.kind == LEAST else is_not_negative(of)

    # --- statements ----------------------------------------------------------------------------------------------

    def is_zero(self, of: Term) -> bool:
        """Says whether a term is shown to be 0 here, by form or by the solver."""
        return self._zero_by_form(of) or self.solver.shows(self.merged(of), ZERO)

    def decided(self, condition: Term | int) -> Term:
        """Returns a condition as 0 or 1 if it is shown to be that here, else in simpler form."""
        of = self.simpler(condition)
        seen = {value for value in self.values(of) if value is not None} if of.constant is None else set()
        if len(seen) == 1 and self.is_zero(of - (value := seen.pop())):
            return term(value)
        return of

    def _zero_by_form(self, of: Term) -> bool:
        return not of.parts or not self.simpler(self.unnamed(of)).parts

    def merged(self, of: Term) -> Term:
        """Returns the term with one name for names in it that are shown to be equal here."""
        names = sorted((atom.name for atom in of.atoms if atom.name in self.names), key=lambda name: int(name[1:]))
        alike: dict[str, str] = {}
        for number, name in enumerate(names):
            for other in names[:number]:
                if other not in alike and self._alike(name, other):
                    alike[name] = other
                    break
        if not alike:
            return of
        return of.rebuilt(lambda atom: symbol(alike[atom.name]) if atom.name in alike else atom.term)

    def _alike(self, name: str, other: str) -> bool:
        apart = symbol(name) - symbol(other)
        return not any(self.values(apart)) and (self._zero_by_form(apart) or self.solver.shows(apart, ZERO))

    def show_equal(self, what: str, found: Term | int, expected: Term | int) -> None:
        """Raises Refused, with numbers if some are found, unless two terms are equal here for all values."""
        apart = self.simpler(term(found) - expected)
        self.shown["all"] += 1
        if self._zero_by_form(apart):
            self.shown["by form"] += 1
        elif not self.is_zero(apart):
            raise Refused(f"{what} is {self._words(found)}, expected {self._words(expected)}{self._where(apart, ZERO)}")

    def show(self, what: str, of: Term | int) -> None:
        """Raises Refused, with numbers if some are found, unless a term is shown to be >= 0 here for all values."""
        of = self.simpler(of)
        self.shown["all"] += 1
        if self.not_negative(of):
            self.shown["by form"] += 1
        elif not self.solver.shows(of, NOT_NEGATIVE):
            raise Refused(f"{what}: {self._words(of)}, expected no number below 0{self._where(of, NOT_NEGATIVE)}")

    def show_fits(self, of: Term) -> None:
        """Raises Refused, with numbers if found, unless a term fits 32 bits here for all values within bounds."""
        of = self.simpler(of)
        if all(self._is_within(self._lowest(left)) for left in (LARGEST - of, of + LARGEST + 1)):
            return
        # A multiple of what has a name, which bounds know, is one by that name.
        times = gcd(*of.parts.values())
        of = times * self.named(Term({monomial: factor // times for monomial, factor in of.parts.items()}))
        bounds = [*self.bounds, *self._of_between(self.unnamed(of))]
        for left in (LARGEST - of, of + LARGEST + 1):
            if not self.not_negative(left) and not self.solver.shows(left, NOT_NEGATIVE, bounds):
                with self.assuming(*bounds):
                    where = self._where(left, NOT_NEGATIVE)
                raise Refused(f"{self._words(of)} does not fit 32 bits{where}")

    def _is_within(self, of: Term) -> bool:
        """Says whether a term is shown to be not negative here within bounds, by far if the solver can show it.

        What was shown of a term holds for those that are greater by a number, as the terms of other rows of a tile are.
        """
        number = of.parts.get(CONSTANT, 0)
        key = ("within", of - number)
        if number >= self._memo.get(key, inf):
            return True
        if self.not_negative(of) or self._within_a_bound(of):
            self._memo[key] = number
            return True
        for less in (SOME_ROWS, 0):
            if self.solver.shows(of - less, NOT_NEGATIVE, self.bounds):
                self._memo[key] = number - less
                return True
        return False

    def _lowest(self, of: Term) -> Term:
        """Returns a term that is not above this one: with one of its ends for each symbol that is between two terms."""
        for name in of.symbols & self.between.keys():
            own = symbol(name)
            factor = of.parts.get((*own.atoms,), 0)
            of = of + factor * (self.between[name][factor < 0] - own)
        return of

    def _of_between(self, of: Term) -> list[Term]:
        """Returns what is not negative of the symbols of a term that are between two terms."""
        ends = ((symbol(name), self.between[name]) for name in sorted(of.symbols & self.between.keys()))
        return [fact for own, (low, high) in ends for fact in (own - low, high - own)]

    def _within_a_bound(self, of: Term) -> bool:
        """Says whether a single bound shows that a term is not negative, which spares asking the solver.

        Of the term's atoms the one counts that the fewest bounds have.
        """
        near = min((self._bounds_of[atom] for atom in of.atoms if atom in self._bounds_of), key=len, default=())
        return any(self.range(of - bound)[0] >= 0 for bound in near)

    def _words(self, of: Term | int) -> str:
        """Returns words for a term, without names if that is short."""
        plain = str(self.unnamed(term(of)))
        return plain if len(plain) <= MOST_WORDS else str(of)

    def _where(self, of: Term, statement: str) -> str:
        """Returns words for numbers where a statement is false, or for that none are known."""
        numbers = self.example(of, statement)
        if numbers == {}:
            return ""
        if numbers is None:
            return ", which is not shown, nor are numbers known where it is false"
        return ", where " + ", ".join(f"{name} = {value}" for name, value in sorted(numbers.items()))

    def quotient_bound(self, of: Term, most: Term, by: Term) -> Term:
        """Returns the fact of / by <= most / by, once `of` is shown to be not above `most`."""
        self.show("a greater term less another", most - of)
        self.show("a divisor less 1", by - 1)
        return quotient(most, by) - quotient(of, by)

    def example(self, of: Term, statement: str) -> dict[str, int] | None:
        """Returns numbers of symbols for which a statement is false, None where none are found."""
        near = self.solver.counter.get(of, {})
        symbols = self.unnamed(of).symbols.union(*(self.unnamed(fact).symbols for fact in self.here))
        plain, facts = self.unnamed(of), [self.unnamed(fact) for fact in self.here]
        rng = random.Random(1)
        for trial in range(2000):
            numbers = {
                name: near[name]
                if name in near and (not trial or rng.random() < 0.7)
                else drawn(rng, self.ranges[name])
                for name in sorted(symbols)
            }
            memo: dict[Term, int] = {}
            try:
                value = number_of(plain, numbers, memo)
                if (value != 0 if statement == ZERO else value < 0) and all(
                    number_of(f, numbers, memo) >= 0 for f in facts
                ):
                    return numbers
            except ZeroDivisionError:
                continue
        return None


def _short(of: Term) -> bool:
    """Says whether a term is so short that it needs no name: a sum of few numbers, symbols and quotients of such."""
    return len(of.parts) <= SHORT and all(len(monomial) <= 1 for monomial in of.parts) and all(map(_light, of.atoms))


def _light(atom: Atom) -> bool:
    return atom.kind == SYMBOL or (atom.kind == QUOTIENT and _short(atom.of) and _short(atom.by))
