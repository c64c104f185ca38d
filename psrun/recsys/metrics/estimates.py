"""Values of metrics over examples of users, with intervals, also by segment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psrun.metrics import Intervals
from psrun.recsys.metrics.ranking import Examples, RankingMetric, auc_by_group

_SAMPLES = 100  # of the bootstrap
_BLOCKS = 20_000  # of users that are drawn together if there are more users
_DEVIATIONS = 1.96  # of a 95 % interval
_MOST_SEGMENTS = 20  # of a column
_SMALLEST = 1e-7  # as in `psrun.metrics`
OTHERS = "(others)"


@dataclass(frozen=True)
class Columns:
    """Examples, a value for each in every array (n,).

    Attributes:
      user: integers; None: each example is by itself.
      score: the value that ranks the examples.
      prediction: the probability, or the number of a regression.
      by: the columns of segments by name: floats, or integers that stand for texts.
    """

    user: np.ndarray | None
    label: np.ndarray
    score: np.ndarray
    prediction: np.ndarray
    weight: np.ndarray
    by: Mapping[str, np.ndarray]

    def at(self, chosen: np.ndarray) -> Columns:
        user = None if self.user is None else self.user[chosen]
        by = {name: values[chosen] for name, values in self.by.items()}
        return Columns(user, self.label[chosen], self.score[chosen], self.prediction[chosen], self.weight[chosen], by)


# Of the number of times that each block of users is drawn (blocks,), the value of a metric; NaN if it is undefined.
Statistic = Callable[[np.ndarray], float]


def _silent() -> None:
    """Nobody waits for progress."""


def estimates(
    columns: Columns,
    metrics: Sequence[RankingMetric],
    task: str | None = None,
    progress: Callable[[], None] = _silent,
    intervals: Intervals | None = None,
) -> dict[str, Any]:
    """The number of examples and users, and the values of metrics with 95 % intervals.

    An interval is 1.96 standard deviations of the metric over bootstrap samples of users to both sides; more than
    20,000 users are drawn in that many fixed groups. A single user has no interval.

    Args:
      metrics: of lists; they need users.
      task: binary, for log loss, normalized entropy, calibration and AUC too; regression, for mae and rmse too.
      progress: called for each metric, and each sample of the bootstrap.
      intervals: of the AUC of a binary task; None for those of probabilities.

    Returns:
      `examples`, `users` (without users None), `metrics` by name, None for one that is undefined, and `intervals` by
      name, [low, high], of those that have one.
    """
    user = np.arange(len(columns.label)) if columns.user is None else columns.user
    examples = Examples(user, columns.label, columns.score, columns.weight)
    num_blocks = min(_BLOCKS, examples.num_users)
    blocks: np.ndarray = np.arange(examples.num_users) % max(1, num_blocks)
    prediction = columns.prediction[examples.order]
    statistics = {metric.name: _of_lists(metric, examples, blocks, num_blocks) for metric in metrics}
    if task == "binary":
        statistics |= _of_probabilities(examples, prediction, intervals or Intervals(), blocks, num_blocks)
    elif task == "regression":
        statistics |= _of_numbers(examples, prediction, blocks, num_blocks)
    num_users = None if columns.user is None else examples.num_users
    return {"examples": len(examples.order), "users": num_users, **_with_intervals(statistics, num_blocks, progress)}


def of_lists(
    examples: Examples,
    metrics: Sequence[RankingMetric],
    users: np.ndarray | None = None,
    progress: Callable[[], None] = _silent,
) -> dict[str, Any]:
    """As `estimates`, of metrics of lists alone.

    Args:
      users: (lists,) whose each list is, integers, if a user has several; the bootstrap draws users with all of theirs.
    """
    of_list: np.ndarray = np.arange(examples.num_users) if users is None else np.unique(users, return_inverse=True)[1]
    num_users = int(of_list.max(initial=-1)) + 1
    num_blocks = min(_BLOCKS, num_users)
    blocks: np.ndarray = of_list % max(1, num_blocks)
    statistics = {metric.name: _of_lists(metric, examples, blocks, num_blocks) for metric in metrics}
    return {
        "examples": len(examples.order), "users": num_users, **_with_intervals(statistics, num_blocks, progress)
    }  # fmt: skip


def _with_intervals(
    statistics: Mapping[str, Statistic], num_blocks: int, progress: Callable[[], None]
) -> dict[str, Any]:
    def sample(statistic: Statistic, counts: np.ndarray) -> float:
        progress()
        return statistic(counts)

    values: dict[str, float | None] = {}
    intervals: dict[str, list[float]] = {}
    generator = np.random.default_rng(0)
    drawn = [generator.poisson(1.0, num_blocks).astype(np.float64) for _ in range(_SAMPLES if num_blocks > 1 else 0)]
    for name, statistic in statistics.items():
        value = statistic(np.ones(num_blocks))
        values[name] = None if math.isnan(value) else value
        sampled = np.array([sample(statistic, counts) for counts in drawn])
        sampled = sampled[~np.isnan(sampled)]
        if values[name] is not None and len(sampled) > 1:
            half = _DEVIATIONS * float(sampled.std(ddof=1))
            intervals[name] = [value - half, value + half]
    return {"metrics": values, "intervals": intervals}


def by_segment(
    columns: Columns,
    metrics: Sequence[RankingMetric],
    task: str | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    progress: Callable[[], None] = _silent,
    intervals: Intervals | None = None,
) -> list[dict[str, Any]]:
    """The `estimates` of each segment, with its `column` and `value`; a list has only the examples of its segment.

    The segments of texts are the 20 most frequent ones, and all others together; those of numbers with more values are
    their quarters.

    Args:
      names: the texts that the integers 0, 1, ... of a column stand for.
    """
    return [
        {"column": name, "value": value, **estimates(columns.at(chosen), metrics, task, progress, intervals)}
        for name, values in columns.by.items()
        for value, chosen in _segments(values, (names or {}).get(name))
    ]


def _segments(values: np.ndarray, names: Sequence[str] | None) -> Iterator[tuple[str, np.ndarray]]:
    """The name of each segment, and the places of its examples."""
    distinct, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
    is_number = values.dtype.kind == "f"
    if is_number and len(distinct) > _MOST_SEGMENTS:
        yield from _quarters(values)
        return
    chosen = np.argsort(-counts, kind="stable")[:_MOST_SEGMENTS]
    for number in sorted(chosen) if is_number else chosen:
        value = distinct[number]
        name = f"{value:g}" if is_number else str(value) if names is None else names[value]
        yield name, np.flatnonzero(numbers == number)
    if len(distinct) > len(chosen):
        yield OTHERS, np.flatnonzero(~np.isin(numbers, chosen))


def _quarters(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    edges = np.unique(np.nanquantile(values, [0, 0.25, 0.5, 0.75, 1]))
    for low, high in itertools.pairwise(edges):
        is_last = high == edges[-1]
        chosen = np.flatnonzero((values >= low) & ((values <= high) if is_last else (values < high)))
        yield f"{low:g} to {high:g}", chosen
    if len(missing := np.flatnonzero(np.isnan(values))):
        yield "nan", missing


def _of_lists(metric: RankingMetric, examples: Examples, blocks: np.ndarray, num_blocks: int) -> Statistic:
    values, weights = metric.values(examples)
    return _ratio(np.bincount(blocks, values * weights, num_blocks), np.bincount(blocks, weights, num_blocks))


def _ratio(sums: np.ndarray, weights: np.ndarray) -> Statistic:
    """The weighted mean of values by block."""

    def value(counts: np.ndarray) -> float:
        weight = float(counts @ weights)
        return float(counts @ sums) / weight if weight > 0 else math.nan

    return value


def _of_probabilities(
    examples: Examples, prediction: np.ndarray, intervals: Intervals, blocks: np.ndarray, num_blocks: int
) -> dict[str, Statistic]:
    """The metrics of `psrun.metrics`; labels that are not 0 are positive."""
    block = blocks[examples.user]
    weight = examples.weight
    label = examples.label
    if intervals.from_logits:
        logit = examples.score.astype(np.float64)
        loss = np.logaddexp(0, logit) - label * logit
    else:
        clipped = np.clip(prediction.astype(np.float64), _SMALLEST, 1 - _SMALLEST)
        loss = -(label * np.log(clipped) + (1 - label) * np.log1p(-clipped))
    losses, labels, predictions, weights = (
        np.bincount(block, values * weight, num_blocks) for values in (loss, label, prediction, np.ones(len(label)))
    )
    interval = intervals.of(examples.score).numpy()
    by_score = np.argsort(-interval, kind="stable")
    one_group: np.ndarray = np.zeros(len(by_score), np.int64)

    def normalized_entropy(counts: np.ndarray) -> float:
        total = float(counts @ weights)
        rate = float(counts @ labels) / total if total else 0.0
        if not 0 < rate < 1:
            return math.nan
        entropy = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
        return float(counts @ losses) / total / entropy

    def auc(counts: np.ndarray) -> float:
        weighted = (weight * counts[block])[by_score]
        return float(auc_by_group(one_group, 1, label[by_score] != 0, interval[by_score], weighted)[0])

    return {
        "auc": auc,
        "log_loss": _ratio(losses, weights),
        "normalized_entropy": normalized_entropy,
        "calibration": _ratio(predictions, labels),
    }


def _of_numbers(
    examples: Examples, prediction: np.ndarray, blocks: np.ndarray, num_blocks: int
) -> dict[str, Statistic]:
    block = blocks[examples.user]
    error = prediction.astype(np.float64) - examples.label
    weights = np.bincount(block, examples.weight, num_blocks)
    mean_square = _ratio(np.bincount(block, error**2 * examples.weight, num_blocks), weights)
    return {
        "mae": _ratio(np.bincount(block, np.abs(error) * examples.weight, num_blocks), weights),
        "rmse": lambda counts: math.sqrt(mean_square(counts)),
    }
