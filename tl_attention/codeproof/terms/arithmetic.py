"""The arithmetic of generated code's expressions where sizes are unknown: C's operators on Terms, within facts.

A value is a number, a Term, or an array or a Spread with one for each thread; numbers are computed with as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tl_attention.codeproof.run.threads import NUMBERS, Value
from tl_attention.codeproof.terms import choices
from tl_attention.codeproof.terms.choices import chosen, equal
from tl_attention.codeproof.terms.facts import NOT_NEGATIVE, Facts
from tl_attention.codeproof.terms.spread import Spread, apply
from tl_attention.codeproof.terms.term import Refused, Term, as_number, is_not_negative, quotient, term
from tl_attention.problem.mask import ceildiv


class TermOperators:
    """TermOperators are C's operators on Terms, by the names that expressions call them by, and those of a Mask."""

    def __init__(self, facts: Facts):
        self.facts = facts
        of_terms: dict[str, Callable[..., Term]] = {
            "quotient": self.quotient,
            "remainder": self.remainder,
            "select": self.select,
            "both": self.both,
            "either": lambda a, b: 1 - (1 - self.truth(a)) * (1 - self.truth(b)),
            "negation": lambda a: 1 - self.truth(a),
            "equal": equal,
            "unequal": lambda a, b: 1 - equal(a, b),
            "min": self.least,
            "max": self.most,
        }
        self.functions = {name: _either(function, of_terms.get(name)) for name, function in NUMBERS.items()}
        self.functions["__builtins__"] = {}
        self.ops = SimpleNamespace(
            min=self.functions["min"],
            max=self.functions["max"],
            ceildiv=ceildiv,
            Or=self.functions["either"],
            where=self.functions["select"],
        )

    def truth(self, value: Value) -> Term:
        """Returns 1 where a value is not 0, else 0."""
        simpler = self.facts.simpler(value)
        low, high = self.facts.range(simpler)
        return simpler if low >= 0 and high <= 1 else 1 - equal(simpler, 0)

    def both(self, a: Value, b: Value) -> Term:
        return self.facts.simpler(self.truth(a) * self.truth(b))

    def select(self, condition: Value, a: Value, b: Value) -> Term:
        """Returns a where a condition holds, else b."""
        known = self.facts.simpler(self.truth(condition))
        if known.constant is not None:
            return term(a if known.constant else b)
        return self.facts.simpler(chosen(known, a, b))

    def least(self, a: Value, b: Value) -> Term:
        return self.facts.named(choices.least(a, b))

    def most(self, a: Value, b: Value) -> Term:
        return self.facts.named(choices.most(a, b))

    def quotient(self, a: Value, b: Value) -> Term:
        """Returns C's quotient, which is rounded to 0; raises Refused where the divisor is not shown to be above 0."""
        a, b = self.facts.simpler(a), self.facts.simpler(b)
        # Few drawn numbers may be here, from which a sign is guessed before it is shown.
        if self.facts.sign(b - 1) < 1 and not self.facts.solver.shows(b - 1, NOT_NEGATIVE):
            raise Refused(f"a quotient by {b}, which is not shown to be above 0")
        sign = self.facts.sign(a)
        if sign:
            return self.facts.simpler(quotient(a, b) if sign > 0 else -quotient(-a, b))
        # It is one more where a < 0, and b is no divisor of it.
        return self.facts.simpler(quotient(a, b) + is_not_negative(choices.least(-a, a % b) - 1))

    def remainder(self, a: Value, b: Value) -> Term:
        return self.facts.simpler(term(a) - term(b) * self.quotient(a, b))


def _either(of_numbers: Any, of_terms: Callable[..., Term] | None) -> Any:
    """Returns a function that computes with numbers, or with Terms or a Spread where one of its arguments is one."""
    if of_terms is None:
        return of_numbers

    def function(*values: Value) -> Value:
        if any(isinstance(value, Spread) for value in values):
            return apply(function, *values)
        if not any(isinstance(value, Term) for value in values):
            return of_numbers(*values)
        return as_number(of_terms(*values))

    return function
