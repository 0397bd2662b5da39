"""Polynomials stand in for MUFU.EX2: tests check how far off they are, with coefficients as fp32 holds them."""

from __future__ import annotations

import struct

import pytest
import torch

from tl_attention.loop.exp2 import COEFFICIENTS

# The largest relative error on [0, 1).
ERRORS = {2: 2.06e-3, 3: 8.57e-5, 4: 2.90e-6, 5: 8.50e-8}


def fp32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]


def polynomial(degree: int, x: torch.Tensor) -> torch.Tensor:
    return sum(fp32(coefficient) * x**power for power, coefficient in enumerate(COEFFICIENTS[degree]))


def test_there_is_a_polynomial_of_every_degree_that_a_schedule_may_ask_for() -> None:
    assert {degree: len(coefficients) - 1 for degree, coefficients in COEFFICIENTS.items()} == {
        degree: degree for degree in ERRORS
    }


@pytest.mark.parametrize("degree", ERRORS)
def test_the_largest_relative_error_is_the_one_stated(degree) -> None:
    x = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    error = (polynomial(degree, x) / 2**x - 1).abs().max().item()
    assert 0.99 * ERRORS[degree] < error <= ERRORS[degree]


@pytest.mark.parametrize("degree", ERRORS)
def test_no_neighbour_is_better(degree) -> None:
    """The error is minimal: a relative change of a thousandth of any coefficient but the first makes it larger."""
    x = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    exact = 2**x
    value = polynomial(degree, x)
    least = (value / exact - 1).abs().max()
    for power in range(1, degree + 1):
        for factor in (-1e-3, 1e-3):
            changed = value + factor * COEFFICIENTS[degree][power] * x**power
            assert (changed / exact - 1).abs().max() > least


@pytest.mark.parametrize("degree", ERRORS)
def test_no_value_lies_below_one(degree) -> None:
    assert COEFFICIENTS[degree][0] == 1.0
    assert polynomial(degree, torch.linspace(0, 1, 10_001, dtype=torch.float64)).min() == 1.0
