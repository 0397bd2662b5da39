"""Minima, maxima, equalities and choices of terms are made of what is below 0, and of conditions."""

from __future__ import annotations

from typing import Any

from tl_attention.codeproof.terms.term import HOLDS, Term, below, holds, term


def least(a: Term | int, b: Term | int) -> Term:
    """Returns min(a, b)."""
    return term(a) + below(term(b) - a)


def most(a: Term | int, b: Term | int) -> Term:
    """Returns max(a, b)."""
    return term(b) - below(term(b) - a)


def equal(a: Term | int, b: Term | int) -> Term:
    """Returns 1 where a = b, else 0."""
    return holds(term(a) - b) * holds(term(b) - a)


def chosen(condition: Term | int, a: Term | int, b: Term | int) -> Term:
    """Returns a where a condition of 0 or 1 is 1, else b."""
    return term(b) + term(condition) * (term(a) - b)


def not_negative(condition: Any) -> Term | None:
    """Returns what is not negative exactly where a condition of one comparison is 1, None for any other."""
    for of, sign in ((term(condition), 1), (1 - term(condition), -1)):
        if (
            len(of.parts) == 1
            and len(of.atoms) == 1
            and (atom := next(iter(of.atoms))).kind == HOLDS
            and of.leading == 1
        ):
            return atom.of if sign > 0 else -atom.of - 1
    return None
