"""What is shown of a running epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest


class Metric:
    """A mean of losses of 2, whose total and count are on two servers.

    Args:
      lands: how many steps end before each read, in order; afterwards none.
      count_first: how many of them have added to the count only, by the first read of the total.
      stays_late: whether they have not added to the total by later reads either.
    """

    def __init__(self, lands: list[int], count_first: int = 0, *, stays_late: bool = False) -> None:
        self._lands = iter(lands)
        self._steps = 0
        self._late = count_first
        self._stays_late = stays_late

    def read(self) -> float:
        self._steps += next(self._lands, 0)
        return float(self._steps)

    def total(self) -> float:
        value = 2.0 * (self.read() - self._late)
        self._late = self._late if self._stays_late else 0
        return value


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (lambda: Metric([]), None),
        (lambda: Metric([3]), 2.0),
        (lambda: Metric([1], count_first=1), 2.0),  # the first step: the total is still 0
        (lambda: Metric([1], count_first=1, stays_late=True), None),  # and stays 0 while it is read
        (lambda: Metric([5, 2, 1, 4]), 2.0),
        (lambda: Metric([*itertools.repeat(1, 99)]), 2.0),  # steps never stop ending
    ],
)
def test_the_running_loss_is_of_one_moment(metric: Callable[[], Metric], expected: float | None) -> None:
    from psrun.training.progress import running_mean

    instance = metric()
    assert running_mean(instance.total, instance.read) == expected


@pytest.mark.tensorflow
def test_a_running_loss_that_is_not_a_number_stays_one() -> None:
    from psrun.training.progress import running_mean

    assert running_mean(lambda: float("nan"), lambda: 3.0) != 3.0
    assert str(running_mean(lambda: float("nan"), lambda: 3.0)) == "nan"
