"""A form says how an expression depends on what loops count; every claim is compared with the expression's own values."""

from __future__ import annotations

from itertools import product

import pytest

from tl_attention.proof.code.affine import (
    AFFINE,
    FLOORED,
    INVARIANT,
    OTHER,
    PERIODIC,
    THRESHOLD,
    Form,
    Forms,
    counted,
    form,
    form_of,
)
from tl_attention.proof.code.expression import parsed
from tl_attention.proof.code.threads import NUMBERS


def of(text: str, *names: str) -> Form:
    """Returns the form of an expression in which `n`, or what is named, is counted."""
    return form_of(parsed(text), Forms({name: counted(name) for name in names or ("n",)}))


AFFINES = {
    "n": {"n": 1},
    "3 * n + 5": {"n": 3},
    "(n + 1) * 4 - n": {"n": 3},
    "k - n": {"n": -1},
    "-n": {"n": -1},
    "2 * n - 3 * m": {"n": 2, "m": -3},
    "n * k": {"n": None},
    "(k < 3) ? n : n + 1": {"n": 1},
}


@pytest.mark.parametrize("text", AFFINES)
def test_affine(text):
    found = of(text, "n", "m")
    assert (found.kind, dict(found.core)) == (AFFINE, AFFINES[text])


@pytest.mark.parametrize("text", ["5", "k + 3", "k % 4", "n - n", "n * 0", "k < 3", "min(k, 4)", "(n + k) - n"])
def test_invariant(text):
    found = of(text)
    assert found.kind in (INVARIANT, AFFINE) and dict(found.core).get("n", 0) == 0


# With its period: that of the expression, or a multiple.
PERIODS = {
    "n & 1": 2,
    "n % 3": 3,
    "(n & 3) >> 1": 4,
    "(n >> 1) & 1": 4,
    "((n >> 1) + 1) & 1": 4,
    "(3 & ((n % 3) >> 31)) + n % 3": 3,
    "(n / 3) % 2": 6,
    "(n & 1) * 22528": 2,
    "((n + 1) & 1) ^ 1": 2,
    "(n & 1) + (n % 3)": 6,
    "((n / 2) / 3) & 1": 12,
    "(n & 1) ? 5 : 7": 2,
    "(n % 4) == 3": 4,
    "(2 * n + 1) % 8": 8,
}


@pytest.mark.parametrize("text", PERIODS)
def test_periodic(text):
    found = of(text)
    assert (found.kind, found.period) == (PERIODIC, PERIODS[text])
    # The form's word is kept by the values: over cores that are equal modulo the period they are the same.
    factor = dict(found.core)["n"]
    values = {n: parsed(text)(dict(NUMBERS), {"n": n}) for n in range(6 * found.period)}
    for a, b in product(values, values):
        if (a - b) * factor % found.period == 0:
            assert values[a] == values[b], (a, b)


def test_a_sum_of_counters_is_one_core():
    found = of("(base + t) & 1", "base", "t")
    assert (found.kind, found.core, found.period) == (PERIODIC, (("base", 1), ("t", 1)), 2)
    assert of("((base + t) & 3) ^ ((base + t) % 3)", "base", "t").period == 12


@pytest.mark.parametrize("text", ["n / 4", "n >> 2", "(n / 2) / 2", "n / 4 + k"])
def test_floored(text):
    found = of(text)
    assert (found.kind, found.core, found.period) == (FLOORED, (("n", 1),), 4)


@pytest.mark.parametrize("text", ["n < 3", "n + 1 <= k", "n == 0", "n / 4 < 2", "!(n < 3)", "(n < 3) && (k < 2)"])
def test_threshold(text):
    assert of(text).kind == THRESHOLD


def test_a_choice_by_a_threshold_is_one():
    assert of("(0 < n) ? 1 : ((k == 1) ? 0 : 1)").kind == THRESHOLD
    assert of("(0 < k) ? 1 : 0").kind == INVARIANT


# For which a few periods stand for nothing.
OTHERS = [
    "(a & 1) ^ (b & 1)",
    "(a & 1) + b",
    "(a & 1) + a",
    "a * b",
    "a * a",
    "a ^ b",
    "a & b",
    "a / b",
    "a % k",
    "a & 5",
    "min(a, 3)",
    "a + a / 2",
    "(a & 1) < b",
    "(a < 3) ? a : 0",
    "(a < 3) ^ (a & 1)",
    "(a < 3) + 1",
    "(k * a) % 4",
    "(a / 4) * 2 + a",
    "(a & 1) ? a : 0",
    "(b & 1) ? a : a + 1",
    "(b < 3) ? a : a + 1",
    "a << 1",
]


@pytest.mark.parametrize("text", OTHERS)
def test_what_is_none_of_these(text):
    """No place may have an expression of another form; an operator that forms lack is refused on its way."""
    try:
        assert of(text, "a", "b").kind == OTHER
    except TypeError:
        assert "<<" in text


def test_what_lanes_hand_each_other_keeps_its_form():
    assert of("__shfl_sync(4294967295, n & 1, 0)") == of("n & 1")


def test_numbers_and_forms_mix():
    assert form(3) == Form(INVARIANT, value=3) and form(counted("n")) == counted("n")
    # A product with 0, or a sum that is none, has no counter left.
    assert (form(2) * form(3)).value == 6 and (counted("n") - counted("n")).kind == INVARIANT
