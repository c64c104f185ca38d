"""Mean, deviation and quantiles of numbers that come a few at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_PARTS = 96  # between quantiles: divisible by 4, 6, 8, 12, 16, 24, 32
_FEW = 33  # different values, which are listed
_SAMPLED = 1 << 16  # values at most, from which the quantiles are computed


@dataclass(frozen=True)
class Scale:
    """The distribution of the values of a column, without missing ones (NaN).

    Attributes:
      mean, deviation: of the values; `log_mean`, `log_deviation`: of their logarithms as models take them, log(1 + x),
        and 0 where x is below 0.
      quantiles: 97 of a sample of up to 65,536 values, from the least to the largest; increasing, not strictly.
      distinct: the different values of the sample, increasing, if there are at most 33.
    """

    mean: float
    deviation: float
    log_mean: float
    log_deviation: float
    quantiles: tuple[float, ...] = ()
    distinct: tuple[float, ...] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Scale:
        """The scale that was written as JSON."""
        return cls(**{**record, "quantiles": tuple(record["quantiles"]), "distinct": tuple(record["distinct"])})

    def boundaries(self, num_bins: int) -> tuple[float, ...]:
        """Increasing numbers, from the least value to the largest, between which there are about as many values each.

        Args:
          num_bins: how many intervals at most; values that are as few are the boundaries themselves.
        """
        if not self.quantiles:
            return ()
        places = np.round(np.linspace(0, _PARTS, num_bins + 1)).astype(int)
        few = 0 < len(self.distinct) <= num_bins + 1
        boundaries = self.distinct if few else np.array(self.quantiles)[places]
        return tuple(np.unique(np.array(boundaries, np.float32)).tolist())


class Scaling:
    """Finds the scale of a column."""

    def __init__(self) -> None:
        self._plain = _Moments()
        self._logarithms = _Moments()
        self._sample = _Sample()

    def add(self, values: np.ndarray) -> None:
        floats: np.ndarray = values.astype(np.float64).ravel()
        if np.isnan(floats.sum()):
            floats = floats[~np.isnan(floats)]
        self._plain.add(floats)
        self._logarithms.add(np.log1p(np.maximum(floats, 0)))
        self._sample.add(floats)

    def scale(self) -> Scale:
        moments = (*self._plain.mean_and_deviation(), *self._logarithms.mean_and_deviation())
        sample = self._sample.values()
        if not sample.size:
            return Scale(*moments)
        distinct = np.unique(sample)
        quantiles = np.quantile(sample, np.linspace(0, 1, _PARTS + 1))
        return Scale(*moments, tuple(quantiles.tolist()), tuple(distinct.tolist()) if len(distinct) <= _FEW else ())


class _Moments:
    """Joins the moments of parts (Chan et al., 1979): sums of squares would lose the deviation of large numbers."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, values: np.ndarray) -> None:
        if not values.size:
            return
        mean = float(values.mean())
        apart = mean - self._mean
        count = self._count + values.size
        self._squares += float(np.square(values - mean).sum()) + apart**2 * self._count * values.size / count
        self._mean += apart * values.size / count
        self._count = count

    def mean_and_deviation(self) -> tuple[float, float]:
        """Mean and standard deviation; the deviation is 1 if all values are equal, to avoid a division by 0."""
        deviation = math.sqrt(self._squares / self._count) if self._count else 0.0
        return self._mean, deviation if deviation > 1e-12 * max(1.0, abs(self._mean)) else 1.0


class _Sample:
    """Every value, then every second one, every fourth one, ...: as few as fit."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self._num_kept = 0
        self._num_seen = 0
        self._stride = 1

    def add(self, values: np.ndarray) -> None:
        part = values[-self._num_seen % self._stride :: self._stride]
        self._num_seen += values.size
        self._parts.append(part.copy())
        self._num_kept += part.size
        while self._num_kept > _SAMPLED:
            whole = np.concatenate(self._parts)[::2]
            self._parts = [whole]
            self._num_kept = whole.size
            self._stride *= 2

    def values(self) -> np.ndarray:
        return np.concatenate(self._parts) if self._parts else np.zeros(0)
