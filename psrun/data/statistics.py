"""Mean and deviation of numbers that come a few at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scale:
    """Of the values of a column, and of their logarithms as models take them: log(1 + x), and 0 where x is below 0."""

    mean: float
    deviation: float
    log_mean: float
    log_deviation: float


class Scaling:
    """Finds the scale of a column."""

    def __init__(self) -> None:
        self._plain, self._logarithms = _Moments(), _Moments()

    def add(self, values: np.ndarray) -> None:
        floats: np.ndarray = values.astype(np.float64)
        self._plain.add(floats)
        self._logarithms.add(np.log1p(np.maximum(floats, 0)))

    def scale(self) -> Scale:
        return Scale(*self._plain.mean_and_deviation(), *self._logarithms.mean_and_deviation())


class _Moments:
    """Joins the moments of parts (Chan et al., 1979): sums of squares would lose the deviation of large numbers."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        if not values.size:
            return
        mean = float(values.mean())
        apart, count = mean - self._mean, self._count + values.size
        self._squares += float(np.square(values - mean).sum()) + apart**2 * self._count * values.size / count
        self._mean += apart * values.size / count
        self._count = count

    def mean_and_deviation(self) -> tuple[float, float]:
        """Mean and standard deviation; the deviation is 1 if all values are equal, to avoid a division by 0."""
        deviation = math.sqrt(self._squares / self._count) if self._count else 0.0
        return self._mean, deviation if deviation > 1e-12 * max(1.0, abs(self._mean)) else 1.0
