"""Minima, maxima, equalities and choices of terms are made of what is below 0, and of conditions."""

from __future__ import annotations

from tl_attention.codeproof.terms.term import Term, below, holds, term


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
