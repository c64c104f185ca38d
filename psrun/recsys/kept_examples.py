"""Evaluation examples that this process keeps, for metrics that need all examples of a user or a segment together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from psrun.errors import ConfigError, Problem
from psrun.metrics import Intervals
from psrun.recsys.metrics.estimates import Columns, by_segment, estimates
from psrun.recsys.metrics.ranking import RankingMetric

MOST_KEPT = 1 << 25  # examples, of 24 bytes, and 4 for each column of segments
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # spreads hashes: those of users that are kept are equal in some bits


class KeptExamples:
    """Examples of one output of a model, in memory that is bounded.

    Beyond `most` examples, half of the users are dropped, by a hash, and so on: the metrics are those of a sample of
    whole users, which is the same however the examples are spread over workers.

    Args:
      metrics: of lists.
      task, intervals: as in `psrun.recsys.metrics.estimates.estimates`.
    """

    def __init__(
        self,
        metrics: Sequence[RankingMetric],
        task: str | None,
        most: int = MOST_KEPT,
        intervals: Intervals | None = None,
    ) -> None:
        self._metrics = metrics
        self._task = task
        self._intervals = intervals
        self._most = most
        self.reset()

    def _numbered(self, name: str, values: np.ndarray) -> np.ndarray:
        """Numbers as they are; texts as the numbers that they have in `_texts`."""
        if values.dtype.kind == "f":
            return values
        numbers = self._texts.setdefault(name, {})
        distinct, inverse = np.unique(values.astype(np.bytes_), return_inverse=True)
        found = [numbers.setdefault(each, len(numbers)) for each in distinct.tolist()]
        return np.array(found, np.int32)[inverse]

    def reset(self) -> None:
        self._texts: dict[str, dict[bytes, int]] = {}
        self._parts: list[Columns] = []
        self._num_kept = 0
        self._halvings = 0

    @property
    def share(self) -> float:
        """Of the users that are kept."""
        return 0.5**self._halvings

    def add(self, keys: Mapping[str, Any], label: np.ndarray, score: np.ndarray, prediction: np.ndarray,
            weight: np.ndarray | None) -> None:  # fmt: skip
        """Adds examples; all arrays have the shape (n,)."""
        user = keys.get("user")
        weight = np.ones(len(label), np.float32) if weight is None else weight
        by = {name: self._numbered(name, each) for name, each in keys["by"].items()}
        part = Columns(user, label, score, prediction, weight, by)
        self._parts.append(part if user is None else part.at(self._kept(user)))
        self._num_kept += len(self._parts[-1].label)
        while self._num_kept > self._most:
            if user is None:
                raise ConfigError([Problem("evaluation.by", _too_many(self._most))])
            self._halvings += 1
            self._parts = [each.at(self._kept(each.user)) for each in self._parts if each.user is not None]
            self._num_kept = sum(len(each.label) for each in self._parts)

    def _kept(self, user: np.ndarray) -> np.ndarray:
        """The places of examples whose users are kept."""
        if not self._halvings:
            return np.arange(len(user))
        spread = user.astype(np.uint64) * _MULTIPLIER
        return np.flatnonzero(spread >> np.uint64(64 - self._halvings) == 0)

    def result(self, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The estimates of all kept examples and of their segments.

        Args:
          progress: called for each metric and segment.

        Raises:
          ConfigError: a prediction is NaN.
        """
        if not self._parts:  # as by a mode of a user that calls `Meters.update` alone
            message = "kept no examples for metrics of lists and segments: call keep(rows(measured)) of its Meters"
            raise ConfigError([Problem("evaluation", message)])
        columns = _together(self._parts)
        try:
            whole = estimates(columns, self._metrics, self._task, progress, self._intervals)
            names = {name: [text.decode(errors="replace") for text in texts] for name, texts in self._texts.items()}
            segments = by_segment(columns, self._metrics, self._task, names, progress, self._intervals)
        except ValueError as error:
            raise ConfigError([Problem("evaluation", f"cannot rank the predictions: {error}")]) from error
        return {**whole, "share_of_users": self.share, "segments": segments}


def _together(parts: Sequence[Columns]) -> Columns:
    first = parts[0]
    user = None if first.user is None else np.concatenate([each.user for each in parts if each.user is not None])
    label, score, prediction, weight = (
        np.concatenate([getattr(each, name) for each in parts]) for name in ("label", "score", "prediction", "weight")
    )
    by = {name: np.concatenate([each.by[name] for each in parts]) for name in first.by}
    return Columns(user, label, score, prediction, weight, by)


def _too_many(most: int) -> str:
    return f"needs evaluation.user beyond {most:,} evaluation examples: then it measures a sample of whole users"
