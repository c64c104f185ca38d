"""The spread of a number over several runs, and the statistics of SciPy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from psrun.errors import ConfigError

LEVEL = 0.05  # of significance; intervals have the probability 1 - LEVEL


@dataclass(frozen=True)
class Spread:
    """A number over several runs, such as runs that differ only in the seed.

    Attributes:
      deviation: the sample standard deviation.
      number: of runs.
    """

    mean: float
    deviation: float
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of two values or more."""
        return cls(statistics.fmean(values), statistics.stdev(values), len(values))

    def interval(self) -> tuple[float, float]:
        """Where one more run has its value with a probability of 95 %: mean ± t · s · sqrt(1 + 1/n).

        Raises:
          ConfigError: SciPy is not installed.
        """
        quantile = float(scipy_stats("the spread of runs").t.ppf(1 - LEVEL / 2, self.number - 1))
        half = quantile * self.deviation * sqrt(1 + 1 / self.number)
        return self.mean - half, self.mean + half


def scipy_stats(purpose: str) -> Any:
    """The module `scipy.stats`. Raises ConfigError if SciPy is not installed."""
    try:
        from scipy import stats
    except ImportError as error:
        raise not_installed(purpose, error) from error
    return stats


def not_installed(purpose: str, error: ImportError) -> ConfigError:
    """The error to raise if `purpose` needs a package of the extra `report` that is not installed."""
    return ConfigError(f"{purpose} needs a package that is not installed: pip install 'psrun[report]' ({error})")
