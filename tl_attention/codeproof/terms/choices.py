"""Minima, maxima, equalities and choices of terms are made of what is below 0, and of conditions."""

from __future__ import annotations

from typing import Any

from tl_attention.codeproof.terms.term import HOLDS, Term, is_not_negative, negative_part, term


def least(a: Term | int, b: Term | int) -> Term:
    """Returns min(a, b)."""
    return term(a) + negative_part(term(b) - a)


def most(a: Term | int, b: Term | int) -> Term:
    """Returns max(a, b)."""
    return term(b) - negative_part(term(b) - a)


def equal(a: Term | int, b: Term | int) -> Term:
    """Returns 1 where a = b, else 0."""
    return is_not_negative(term(a) - b) * is_not_negative(term(b) - a)


def chosen(condition: Term | int, a: Term | int, b: Term | int) -> Term:
    """Returns a where a condition of 0 or 1 is 1, else b."""
    return term(b) + term(condition) * (term(a) - b)


def nonnegative_form(condition: Any) -> Term | None:
    """Returns a term that is >= 0 exactly where a condition of one comparison is 1; None for other conditions."""
    for of, sign in ((term(condition), 1), (1 - term(condition), -1)):
        if (
            len(of.parts) == 1
            and len(of.atoms) == 1
            and (atom := next(iter(of.atoms))).kind == HOLDS
            and of.leading == 1
        ):
            return atom.of if sign > 0 else -atom.of - 1
    return None
