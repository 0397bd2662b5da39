"""Measured times correct what is predicted: of schedules that share keys, predictions are wrong alike.

The correction is a Gaussian process over the keys, with the mean of all residuals as its mean: the covariance of two
points falls with the number of keys in which they differ (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, chapter 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tl_attention.lab.search.parameters import Point

# Covariance falls to 1/e where so many keys differ; the variance of a residual that no other point shares.
SCALE, NOISE = 25.0, 0.05
# Parameters of where a statement stands and how wide it is: predictions know these.
OF_ORDER = ("rank.", "stage.", "width.", "begins.")


class Residuals:
    """A Residuals expects the time of a point from its prediction, and from what predictions of others were wrong by.

    `times` are logarithms of measured times in any unit, and `guesses` of predicted ones.
    """

    def __init__(self, points: Sequence[Point], times: Sequence[float], guesses: Sequence[float]) -> None:
        self._names = [name for name in points[0] if not name.startswith(OF_ORDER)]
        # A key's value as a number: numbers are compared a hundred times as fast.
        self._numbers: dict[tuple[str, str], int] = {}
        self._points = np.array([self._row(point) for point in points])
        found = np.array(times) - np.array(guesses)
        self._mean = float(found.mean())
        covariance = np.array([self._near(row) for row in self._points])
        self._weights = np.linalg.solve(covariance + NOISE * np.eye(len(points)), found - self._mean)

    def expected(self, point: Point, guessed_ms: float) -> float:
        """Returns the logarithm of a point's time, in the unit of `times`."""
        return math.log(guessed_ms) + self._mean + float(self._near(np.array(self._row(point))) @ self._weights)

    def _row(self, point: Point) -> list[int]:
        values = ((name, str(point[name])) for name in self._names)
        return [self._numbers.setdefault(value, len(self._numbers)) for value in values]

    def _near(self, row: np.ndarray) -> np.ndarray:
        near: np.ndarray = np.exp(-(self._points != row).sum(axis=1) / SCALE)
        return near
