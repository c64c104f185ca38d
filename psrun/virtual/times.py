"""How long the steps of virtual workers take."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Mapping, Sequence

DELAYS = ("constant", "uniform", "geometric", "recorded")
_SEED_STRIDE = 1_000_003
_TAIL = 0.001  # of updates: their delays count as the longest delay of all others


class StepSeconds:
    """The seconds of steps, drawn: of computing from a log-normal distribution, of messages from an exponential one.

    Args:
      mean_s: of a step on a worker that is not slow.
      deviation: the standard deviation, as a multiple of that mean; 0: all steps take that.
      slow_s: seconds added to each step of a worker, by its index.
      pause_probability: of a step that takes `pause_s` longer, on any worker.
      latency_s: the mean time of a message, one way.
    """

    def __init__(
        self,
        mean_s: float,
        deviation: float = 0.0,
        slow_s: Mapping[int, float] | None = None,
        pause_probability: float = 0.0,
        pause_s: float = 0.0,
        latency_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._mean_s = mean_s
        self._slow_s = slow_s or {}
        self._pause_probability = pause_probability
        self._pause_s = pause_s
        self._latency_s = latency_s
        self._seed = seed
        self._random = random.Random(seed)
        variance = math.log1p(deviation**2)
        self._sigma = math.sqrt(variance)
        self._mu = -variance / 2  # of a factor with the mean 1

    def begin(self, step: int) -> None:
        """Draws from a step on depend on the seed and this step only."""
        self._random = random.Random(self._seed * _SEED_STRIDE + step)

    def message_s(self) -> float:
        """The time of the next message."""
        return self._random.expovariate(1 / self._latency_s) if self._latency_s > 0 else 0.0

    def __call__(self, worker: int) -> float:
        """The time in which a worker computes its next step."""
        seconds = self._mean_s
        if self._sigma > 0:
            seconds *= self._random.lognormvariate(self._mu, self._sigma)
        seconds += self._slow_s.get(worker, 0.0)
        if self._pause_probability > 0 and self._random.random() < self._pause_probability:
            seconds += self._pause_s
        return seconds


class DrawnDelays:
    """The delays of updates, in updates: each depends on the seed and its number only.

    Args:
      probabilities: of the delays 0, 1, ...
    """

    def __init__(self, probabilities: Sequence[float], seed: int) -> None:
        self._up_to = list(itertools.accumulate(probabilities))
        self._seed = seed

    @property
    def longest(self) -> int:
        return len(self._up_to) - 1

    def __call__(self, number: int) -> int:
        drawn = random.Random(self._seed * _SEED_STRIDE + number).random()
        return min(bisect.bisect_right(self._up_to, drawn), self.longest)


def delay_probabilities(kind: str, mean: float | None, recorded: Mapping[int, int] | None) -> list[float]:
    """The probabilities of the delays 0, 1, ...; the last one is not 0.

    Args:
      kind: one of DELAYS. Uniform: from 0 to twice the mean.
      mean: in updates; None if recorded.
      recorded: the number of updates by delay; None otherwise.

    Raises:
      ValueError: the distribution does not exist; the message says why.
    """
    if kind == "recorded":
        assert recorded is not None
        total = sum(recorded.values())
        return _without_tail([recorded.get(delay, 0) / total for delay in range(max(recorded) + 1)])
    if mean is None:
        raise ValueError(f"is required with cluster.delay={kind}; set it to a number of updates")
    if kind == "geometric":
        share = 1 / (1 + mean)
        longest = 0 if share == 1 else math.ceil(math.log(_TAIL) / math.log(1 - share))
        return _without_tail([share * (1 - share) ** delay for delay in range(longest + 1)])
    most = mean if kind == "constant" else 2 * mean
    if most != int(most):
        kind_of_number = "an integer" if kind == "constant" else "a multiple of 0.5"
        raise ValueError(f"is {mean}, must be {kind_of_number} with cluster.delay={kind}")
    number = int(most) + 1
    return [0.0] * (number - 1) + [1.0] if kind == "constant" else [1 / number] * number


def _without_tail(values: list[float]) -> list[float]:
    """Without the tail, whose probability goes to the longest delay that is kept."""
    up_to = itertools.accumulate(values)
    longest = next(delay for delay, share in enumerate(up_to) if share > 1 - _TAIL)
    return [*values[:longest], 1.0 - sum(values[:longest])]
