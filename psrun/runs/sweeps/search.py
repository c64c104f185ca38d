"""A search: which configuration runs next, up to which rung, and what it is worth; without a clock and files.

Successive halving: each configuration trains up to a rung, an epoch, and pauses. It goes on to the next rung if it is
among the best of its rung (Jamieson and Talwalkar, "Non-stochastic best arm identification", AISTATS 2016). Where
proposals follow from results, a rung never has all of its configurations: then those go on that are among the best so
far (Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol


class Proposals(Protocol):
    """Proposes configurations and learns what they are worth."""

    def ask(self) -> int | None:
        """The number of the next configuration; None if there is none left."""

    def report(self, number: int, rung: int, value: float) -> None:
        """A configuration reached this value at a rung that is not the last."""

    def tell(self, number: int, value: float | None) -> None:
        """A configuration reached this value at the end of its training; None: it failed. It may be told twice."""


@dataclass(frozen=True)
class Part:
    """The training of one job up to a rung.

    Attributes:
      replicate: of its configuration, from 0.
    """

    configuration: int
    replicate: int
    rung: int


@dataclass
class _Configuration:
    """What is known of a configuration: the value of each replicate at each rung. None: it failed."""

    num_replicates: int
    rung: int = 0
    values: dict[int, dict[int, float | None]] = field(default_factory=dict)

    def failed(self, rung: int) -> bool:
        return any(value is None for value in self.values.get(rung, {}).values())

    def mean(self, rung: int) -> float | None:
        """The mean of its replicates; None before all have a value, or if one has failed."""
        values = [value for value in self.values.get(rung, {}).values() if value is not None]
        return fmean(values) if len(values) == self.num_replicates else None


def rungs(epochs: int, *, factor: int, min_epochs: int, num_configurations: int) -> list[int]:
    """The epochs after which configurations pause, and the last epoch.

    There are no more rungs than configurations to halve: of four with factor 3, one is left after one rung.
    """
    found = [epochs]
    left = num_configurations
    while left >= factor and found[0] // factor >= min_epochs:
        left //= factor
        found.insert(0, found[0] // factor)
    return found


class Search:
    """A search under way.

    Args:
      num_configurations: how many `proposals` has at most, of all processes of the search.
      num_replicates: jobs of a configuration, which is worth their mean.
      num_rungs: 1 without halving.
      factor: one of so many configurations at a rung goes on.
      maximize: whether greater values are better.
      waits: whether a configuration goes on only when it is among the best whatever the outstanding ones reach; else
        when it is among the best so far.
    """

    def __init__(
        self,
        proposals: Proposals,
        *,
        num_configurations: int,
        num_replicates: int = 1,
        num_rungs: int = 1,
        factor: int = 3,
        maximize: bool = False,
        waits: bool = True,
    ) -> None:
        self._proposals = proposals
        self._num_configurations = num_configurations
        self._num_replicates = num_replicates
        self._last = num_rungs - 1
        self._factor = factor
        self._sign = -1.0 if maximize else 1.0
        self._waits = waits
        self._is_exhausted = False
        self._configurations: dict[int, _Configuration] = {}
        self._pending: deque[Part] = deque()
        self._running: set[Part] = set()

    def restore(self, number: int, values: Sequence[Sequence[float | None]], *, goes_on: bool = False) -> None:
        """Takes over a configuration of an earlier process.

        Args:
          values: by replicate, of the rungs that it has reached; a last None: it failed there.
          goes_on: whether a job of it was on the way to its next rung.
        """
        configuration = _Configuration(self._num_replicates)
        self._configurations[number] = configuration
        for replicate, of_replicate in enumerate(values):
            for rung, value in enumerate(of_replicate):
                configuration.values.setdefault(rung, {})[replicate] = value
        configuration.rung = max(configuration.values, default=0)
        if any(configuration.failed(rung) for rung in configuration.values):
            self._proposals.tell(number, None)
            return
        mean = configuration.mean(self._last)
        if mean is not None:
            self._proposals.tell(number, mean)
        elif goes_on and configuration.mean(configuration.rung) is not None:
            configuration.rung += 1
        there = configuration.values.get(configuration.rung, {})
        for replicate in range(self._num_replicates):
            if replicate not in there:
                self._pending.append(Part(number, replicate, configuration.rung))

    def next(self) -> Part | None:
        """What to run now; None: nothing before another part has ended, or the search is over."""
        if not self._pending:
            number = self._promoted()
            if number is None:
                number = self._asked()
            if number is None:  # without further proposals, more configurations may go on
                number = self._promoted()
            if number is not None:
                rung = self._configurations[number].rung
                self._pending.extend(Part(number, replicate, rung) for replicate in range(self._num_replicates))
        if not self._pending:
            return None
        part = self._pending.popleft()
        self._running.add(part)
        return part

    def ended(self, part: Part, value: float | None) -> None:
        """A part has ended with this value; None: it failed."""
        self._running.discard(part)
        configuration = self._configurations[part.configuration]
        has_failed = configuration.failed(part.rung)
        configuration.values.setdefault(part.rung, {})[part.replicate] = value
        if value is None:
            self._pending = deque(each for each in self._pending if each.configuration != part.configuration)
            if not has_failed:
                self._proposals.tell(part.configuration, None)
            return
        mean = configuration.mean(part.rung)
        if mean is None:
            return
        if part.rung == self._last:
            self._proposals.tell(part.configuration, mean)
        else:
            self._proposals.report(part.configuration, part.rung, mean)

    @property
    def paused(self) -> list[int]:
        """The configurations that wait at a rung which is not the last."""
        return [
            number
            for number, each in self._configurations.items()
            if each.rung < self._last and each.mean(each.rung) is not None
        ]

    def means(self) -> dict[int, float]:
        """The value of each configuration that has reached the end of its training."""
        found = {number: each.mean(self._last) for number, each in self._configurations.items()}
        return {number: value for number, value in found.items() if value is not None}

    def _asked(self) -> int | None:
        may_ask = not self._is_exhausted and len(self._configurations) < self._num_configurations
        number = self._proposals.ask() if may_ask else None
        if number is None:
            self._is_exhausted = True
            return None
        self._configurations[number] = _Configuration(self._num_replicates)
        return number

    def _promoted(self) -> int | None:
        """A configuration that goes on to its next rung, the highest first; None if there is none."""
        for rung in reversed(range(self._last)):
            number = self._best_of(rung)
            if number is not None:
                self._configurations[number].rung = rung + 1
                return number
        return None

    def _best_of(self, rung: int) -> int | None:
        """The best configuration at a rung that may go on and has not; None if there is none."""
        over = self._over(rung)
        expected = self._expected(rung)
        outstanding = max(0, expected - len(over))  # a person may have trained the rest of a pruned one
        if not outstanding or self._waits:
            share = max(1, expected // self._factor)
        else:
            share = len(over) // self._factor
            outstanding = 0
        ranked = sorted((self._sign * value, number) for number, value in over.items() if value is not None)
        for place, (_, number) in enumerate(ranked):
            if place + outstanding < share and self._configurations[number].rung == rung:
                return number
        return None

    def _over(self, rung: int) -> dict[int, float | None]:
        """The configurations that are done at a rung, with their means; None: failed."""
        return {
            number: each.mean(rung)
            for number, each in self._configurations.items()
            if each.failed(rung) or each.mean(rung) is not None
        }

    def _expected(self, rung: int) -> int:
        """The number of configurations that reach a rung, also of those that fail there."""
        if rung == 0:
            return len(self._configurations) if self._is_exhausted else self._num_configurations
        if not self._waits:
            there = sum(each.rung >= rung for each in self._configurations.values())
            return there + self._more_may_reach(rung)
        below = self._expected(rung - 1)
        share = max(1, below // self._factor)
        over = self._over(rung - 1)
        return share if len(over) < below else min(share, sum(value is not None for value in over.values()))

    def _more_may_reach(self, rung: int) -> bool:
        """Whether configurations of the rungs below may still go on."""
        comes = any(part.rung < rung for part in (*self._running, *self._pending))
        return comes or not self._is_exhausted or self._best_of(rung - 1) is not None
