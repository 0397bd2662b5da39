"""A Term is an integer that depends on sizes: a polynomial over symbols, quotients, minima and conditions.

Terms have one form, by rules that hold for all integers. What holds within bounds alone facts.py knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from math import gcd
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

QUOTIENT, SYMBOL, LEAST, HOLDS = KINDS = "quotient", "symbol", "least", "holds"


class Refused(ValueError):
    """A Refused says which arithmetic no term can stand for, or what could not be shown."""


class Atom:
    """An Atom is what a Term's polynomial is over; equal Atoms are one object.

    A symbol has a name. A quotient is floor(`of` / `by`), with `by` above 0; a least is min(0, `of`); a holds is 1 if
    `of` >= 0, else 0.
    """

    __slots__ = ("__weakref__", "by", "kind", "name", "of", "order")
    known: ClassVar[WeakValueDictionary[tuple[object, ...], Atom]] = WeakValueDictionary()

    def __init__(self, kind: str, name: str, of: Any, by: Any):
        self.kind, self.name, self.of, self.by = kind, name, of, by
        # The order of Atoms in a form, which does not depend on what was made before.
        words = str(self)
        self.order = KINDS.index(kind), len(words), words

    @classmethod
    def one(cls, kind: str, name: str = "", of: Term | None = None, by: Term | None = None) -> Atom:
        """Returns the Atom of this kind."""
        key = kind, name, of, by
        return cls.known.get(key) or cls.known.setdefault(key, cls(kind, name, of, by))

    @property
    def term(self) -> Term:
        """Returns the Term that is this Atom."""
        return Term({(self,): 1})

    @property
    def quotients(self) -> Iterator[tuple[Term, Term]]:
        """Yields (dividend, divisor) of a quotient; a quotient of a quotient is one by both divisors, too."""
        of, by = self.of, self.by
        yield of, by
        while len(of.parts) == 1 and of.leading == 1 and len(inner := [*of.atoms]) == 1 and inner[0].kind == QUOTIENT:
            of, by = inner[0].of, by * inner[0].by
            yield of, by

    def __str__(self) -> str:
        match self.kind:
            case "symbol":
                return self.name
            case "quotient":
                return f"({self.of}) div ({self.by})"
            case "least":
                return f"min(0, {self.of})"
        return f"[{self.of} >= 0]"


Operator = Callable[["Term", Any], Any]


def _of_terms(operator: Operator) -> Operator:
    """Makes an operator one of a Term and a Term or a number; with what threads have a Spread has its own."""

    def of_both(self: Term, other: Any) -> Any:
        return operator(self, other) if isinstance(other, Term | int | np.integer) else NotImplemented

    return of_both


Monomial = tuple[Atom, ...]
CONSTANT: Monomial = ()


class Term:
    """A Term is a sum of monomials of Atoms with integer coefficients; it is never changed.

    Operators are those of integers: `//` rounds down. A comparison is a Term of 0 or 1.
    """

    __slots__ = ("__dict__", "parts")

    def __init__(self, parts: Mapping[Monomial, int]):
        self.parts = {monomial: factor for monomial, factor in parts.items() if factor}

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self.parts.items()))

    def same(self, other: Term | int) -> bool:
        """Says whether two Terms have one form, so that they are equal for all integers."""
        return self.parts == term(other).parts

    def __eq__(self, other: object) -> bool:
        # Whether both have one form, for dicts and sets: code's == is `equal`.
        return self.parts == other.parts if isinstance(other, Term) else self.constant == other

    @property
    def constant(self) -> int | None:
        """Returns the number that the Term is, None if it depends on an Atom."""
        if not self.parts:
            return 0
        return self.parts[CONSTANT] if len(self.parts) == 1 and CONSTANT in self.parts else None

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        return tuple(dict.fromkeys(atom for monomial in self.parts for atom in monomial))

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Returns the names of all symbols in the Term."""
        direct = frozenset(atom.name for atom in self.atoms if atom.kind == SYMBOL)
        return direct.union(*(part.symbols for atom in self.atoms for part in (atom.of, atom.by) if part is not None))

    @cached_property
    def leading(self) -> int:
        """Returns the coefficient of the highest monomial, 0 for a number."""
        rest = [monomial for monomial in self.parts if monomial]
        return self.parts[max(rest, key=_rank)] if rest else 0

    def __str__(self) -> str:
        parts = sorted(self.parts.items(), key=lambda part: _rank(part[0]), reverse=True)
        words = [_words(monomial, factor) for monomial, factor in parts]
        return " + ".join(words).replace("+ -", "- ") or "0"

    __repr__ = __str__
    # NumPy leaves the operators to a Term.
    __array_ufunc__ = None

    @_of_terms
    def __add__(self, other: Term | int) -> Term:
        parts = dict(self.parts)
        for monomial, factor in term(other).parts.items():
            parts[monomial] = parts.get(monomial, 0) + factor
        return Term(parts)

    __radd__ = __add__

    def __neg__(self) -> Term:
        return Term({monomial: -factor for monomial, factor in self.parts.items()})

    @_of_terms
    def __sub__(self, other: Term | int) -> Term:
        return self + -term(other)

    @_of_terms
    def __rsub__(self, other: Term | int) -> Term:
        return term(other) - self

    @_of_terms
    def __mul__(self, other: Term | int) -> Term:
        parts: dict[Monomial, int] = {}
        for first, factor in self.parts.items():
            for second, by in term(other).parts.items():
                monomial = _product(first, second)
                parts[monomial] = parts.get(monomial, 0) + factor * by
        return Term(parts)

    __rmul__ = __mul__

    @_of_terms
    def __floordiv__(self, other: Term | int) -> Term:
        return quotient(self, term(other))

    def __rfloordiv__(self, other: Term | int) -> Term:
        return quotient(term(other), self)

    @_of_terms
    def __mod__(self, other: Term | int) -> Term:
        return self - term(other) * quotient(self, term(other))

    def __divmod__(self, other: Term | int) -> tuple[Term, Term]:
        return self // other, self % other

    @_of_terms
    def __lt__(self, other: Term | int) -> Term:
        return is_not_negative(term(other) - self - 1)

    @_of_terms
    def __le__(self, other: Term | int) -> Term:
        return is_not_negative(term(other) - self)

    @_of_terms
    def __gt__(self, other: Term | int) -> Term:
        return is_not_negative(self - other - 1)

    @_of_terms
    def __ge__(self, other: Term | int) -> Term:
        return is_not_negative(self - other)

    def __rshift__(self, by: int) -> Term:
        return quotient(self, term(1 << _bits(by)))

    def __lshift__(self, by: int) -> Term:
        return self * (1 << _bits(by))

    def __and__(self, mask: int) -> Term:
        """Returns the bits of a mask, which is no negative number: bits from `low` to `high` are a remainder."""
        total, mask = term(0), _bits(mask)
        while mask:
            low = (mask & -mask).bit_length() - 1
            high = low + ((~(mask >> low)) & -(~(mask >> low))).bit_length() - 1
            run = ((1 << (high - low)) - 1) << low
            total += (self % (1 << high)) - (self % (1 << low))
            mask &= ~run
        return total

    __rand__ = __and__

    def __xor__(self, mask: int) -> Term:
        return self + _bits(mask) - 2 * (self & mask)

    __rxor__ = __xor__

    def __or__(self, mask: int) -> Term:
        return self + _bits(mask) - (self & mask)

    def __bool__(self) -> bool:
        if self.constant is None:
            raise Refused(f"a truth value of {self}")
        return bool(self.constant)

    def __int__(self) -> int:
        if self.constant is None:
            raise Refused(f"{self} is no number")
        return self.constant

    def rebuilt(self, made: Callable[[Atom], Term | None]) -> Term:
        """Returns the Term with what `made` returns in the place of each of its Atoms, if that is not None."""
        total = term(0)
        for monomial, factor in self.parts.items():
            part = term(factor)
            for atom in monomial:
                found_atom = made(atom)
                part *= atom.term if found_atom is None else found_atom
            total += part
        return total


def term(value: Term | int) -> Term:
    """Returns a number as a Term, and a Term as it is."""
    if isinstance(value, Term):
        return value
    if hasattr(value, "__len__"):
        raise Refused("threads have values of their own, expected one for all")
    return _number(int(value))


@lru_cache(maxsize=1 << 12)
def _number(value: int) -> Term:
    return Term({CONSTANT: value})


def as_number(value: Any) -> Any:
    """Returns a Term that is a number as this number, any other value as it is."""
    return value.constant if isinstance(value, Term) and value.constant is not None else value


def symbol(name: str) -> Term:
    """Returns the Term of an unknown integer with this name."""
    return Atom.one(SYMBOL, name).term


def quotient(of: Term, by: Term) -> Term:
    """Returns floor(of / by); the divisor is above 0, which whoever divides must have shown.

    Multiples of the divisor stand before the quotient.
    """
    if not of.parts or by.same(1):
        return of
    number = by.constant
    if number is None:
        return _by_term(of, by)
    if number < 1:
        raise Refused(f"a quotient by {number}")
    return _by_number(of, number)


def _by_term(of: Term, by: Term) -> Term:
    highest, factor = max(((m, f) for m, f in by.parts.items() if m), key=lambda part: _rank(part[0]))
    multiples = {
        rest: f // factor
        for monomial, f in of.parts.items()
        if f % factor == 0 and (rest := without(monomial, highest)) is not None
    }
    if multiples:
        whole = Term(multiples)
        left = of - whole * by
        if len(left.parts) < len(of.parts) or len(by.parts) == 1:
            return whole + quotient(left, by)
    if len(by.parts) == 1 and len(highest) + (factor > 1) > 1:
        # floor(x / (a b)) = floor(floor(x / a) / b)
        if of.constant is not None:
            of, factor = quotient(of, term(factor)), 1
        for atom in highest:
            of = quotient(of, atom.term)
        return quotient(of, term(factor))
    if of.constant is not None and of.constant < 0:
        return -1 - quotient(-of - 1, by)
    if of.leading < 0:
        return -Atom.one(QUOTIENT, of=by - 1 - of, by=by).term
    return Atom.one(QUOTIENT, of=of, by=by).term


def _by_number(of: Term, number: int) -> Term:
    shared = gcd(number, *(f for m, f in of.parts.items() if m))
    if shared > 1:
        return quotient(Term({m: f // shared for m, f in of.parts.items()}), term(number // shared))
    # The remainder of a coefficient is the one nearest to 0, of 2 that of its sign; that of the number is none below 0.
    near = {m: (f + ((number - 1) // 2 or f < 0) if m else f) // number for m, f in of.parts.items()}
    whole = Term(near)
    rest = of - whole * number
    if rest.constant is not None:
        return whole + rest.constant // number
    if rest.leading < 0:
        # floor(-x / n) = -floor((x + n - 1) / n)
        return whole - quotient(number - 1 - rest, term(number))
    [*monomials] = (m for m in rest.parts if m)
    if len(monomials) == 1 and len(monomials[0]) == 1 and rest.parts[monomials[0]] == 1:
        atom = monomials[0][0]
        if atom.kind == QUOTIENT and atom.by.constant is not None:
            # floor((floor(x / m) + c) / n) = floor((x + m c) / (m n))
            apart = atom.by.constant
            return whole + quotient(atom.of + apart * rest.parts.get(CONSTANT, 0), term(apart * number))
        if atom.kind == QUOTIENT and atom.of.constant is not None and len(rest.parts) == 1:
            return whole + quotient(term(atom.of.constant // number), atom.by)
    return whole + Atom.one(QUOTIENT, of=rest, by=term(number)).term


def negative_part(of: Term) -> Term:
    """Returns the term min(0, of)."""
    if of.constant is not None:
        return term(min(0, of.constant))
    # min(0, -x) = min(0, x) - x
    return Atom.one(LEAST, of=of).term if of.leading > 0 else Atom.one(LEAST, of=-of).term + of


def is_not_negative(of: Term) -> Term:
    """Returns the condition of >= 0 as a term: 1 where it holds, else 0."""
    if of.constant is not None:
        return term(int(of.constant >= 0))
    shared = gcd(*(f for m, f in of.parts.items() if m))
    if shared > 1:
        of = Term({m: f // shared for m, f in of.parts.items()})
    return Atom.one(HOLDS, of=of).term if of.leading > 0 else 1 - Atom.one(HOLDS, of=-of - 1).term


def _rank(monomial: Monomial) -> tuple[object, ...]:
    return len(monomial), [atom.order for atom in monomial]


def _product(first: Monomial, second: Monomial) -> Monomial:
    """Returns the product of two monomials; a condition times itself is itself."""
    if not first or not second:
        return first or second
    atoms: list[Atom] = []
    for atom in sorted((*first, *second), key=lambda atom: atom.order):
        if not (atoms and atoms[-1] is atom and atom.kind == HOLDS):
            atoms.append(atom)
    return tuple(atoms)


def without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """Returns a monomial divided by another one; None if that does not divide it."""
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _words(monomial: Monomial, factor: int) -> str:
    if not monomial:
        return str(factor)
    names = "*".join(map(str, monomial))
    return {1: names, -1: f"-{names}"}.get(factor, f"{factor}*{names}")


def _bits(value: Any) -> int:
    """Returns a number that bits are counted with; raises Refused for a negative one, or one that is not known."""
    number = term(value).constant
    if number is None or number < 0:
        raise Refused(f"bits of {value}")
    return number
