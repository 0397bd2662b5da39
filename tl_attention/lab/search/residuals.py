"""Measured times correct what is predicted: of schedules that share keys, predictions are wrong alike.

A time grows with a power of the prediction, which is fitted: the clock falls where more is multiplied, and what looks
fastest of many is what a prediction flatters. The rest is a Gaussian process over the keys, whose covariance falls with
the number of keys in which two points differ (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
chapter 2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tl_attention.lab.search.parameters import OF_ORDER, Point

# Covariance falls to 1/e where so many keys differ, each of KIND for several; the part of the variance that no other
# point shares.
SCALE, NOISE = 15.0, 0.05
KIND, OF_KIND = ("block_M", "block_N", "kernel.ping_pong"), 5.0
# What is lost, such as a kernel whose products ptxas serialises, takes longer by this, as a logarithm.
LOST = 0.5
# The power of a prediction with which times grow is between these.
LEAST_POWER, MOST_POWER = 0.6, 1.0


class Residuals:
    """A Residuals expects the time of points from their predictions, and from what others' predictions were wrong by.

    `times` are logarithms of measured times in any unit, and `guesses` of predicted ones. Points that are `lost` have
    no time, as their kernels are not worth one.
    """

    def __init__(
        self, points: Sequence[Point], times: Sequence[float], guesses: Sequence[float], lost: Sequence[Point] = ()
    ) -> None:
        # What predictions know is not a key here.
        self._names = [name for name in points[0] if not name.startswith(OF_ORDER)]
        self._counts = np.array([OF_KIND if name in KIND else 1.0 for name in self._names])
        # A key's value as a number: numbers are compared a hundred times as fast.
        self._numbers: dict[tuple[str, str], int] = {}
        self._points = self._rows([*points, *lost])
        known, guessed = np.array(times), np.array(guesses)
        spread = float(guessed.var())
        power = float(np.mean((guessed - guessed.mean()) * (known - known.mean()))) / spread if spread else MOST_POWER
        self._power = min(max(power, LEAST_POWER), MOST_POWER)
        found = known - self._power * guessed
        self._mean, self._deviation = float(found.mean()), float(found.std())
        covariance = self._near(self._points) + NOISE * np.eye(len(self._points))
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ np.append(found - self._mean, [LOST] * len(lost))

    def expected(self, points: Sequence[Point], guessed_ms: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the logarithms of points' times, in the unit of `times`, and their standard deviations."""
        near = self._near(self._rows(points))
        mean = self._power * np.log(np.array(guessed_ms)) + self._mean + near @ self._weights
        shared = np.einsum("ij,jk,ik->i", near, self._inverse, near)
        return mean, self._deviation * np.sqrt(np.maximum(1 + NOISE - shared, NOISE))

    def looks(self, points: Sequence[Point], guessed_ms: Sequence[float]) -> list[float]:
        """Returns how fast points may well be, as logarithms of times: what is not known yet is taken for fast."""
        mean, deviation = self.expected(points, guessed_ms)
        return [*map(float, mean - deviation)]

    def _rows(self, points: Sequence[Point]) -> np.ndarray:
        def number(name: str, value: str) -> int:
            return self._numbers.setdefault((name, value), len(self._numbers))

        return np.array([[number(name, str(point[name])) for name in self._names] for point in points])

    def _near(self, rows: np.ndarray) -> np.ndarray:
        apart = np.stack([(self._points != row) @ self._counts for row in rows])
        near: np.ndarray = np.exp(-apart / SCALE)
        return near
