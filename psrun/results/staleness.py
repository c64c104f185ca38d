"""Histograms of staleness, as in run.json: their form, their sum and their statistics. No TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from psrun.config import delays

Histogram = Mapping[int, int]  # number of updates by staleness
_PERCENTILES = (50, 95, 99)
_NAMES = tuple(f"p{percent}" for percent in _PERCENTILES)


def statistics_by_worker(by_worker: Mapping[str, Histogram]) -> dict[str, Any]:
    """The staleness of the updates of all workers, as in run.json.

    Returns:
      `updates`, `mean`, `p50`, `p95`, `p99`, `max` and `histogram` ([staleness, number of updates] pairs) of all
      updates, and the same under `by_worker`; empty without an update.
    """
    total = added(by_worker.values())
    if not total:
        return {}
    return {**_statistics(total), "by_worker": {name: _statistics(each) for name, each in sorted(by_worker.items())}}


def brief(recorded: Mapping[str, Any] | None) -> dict[str, float]:
    """The statistics of all updates in what `statistics_by_worker` returned; empty if they were not measured."""
    return {name: recorded[name] for name in ("mean", *_NAMES, "max")} if recorded else {}


def histograms(recorded: Mapping[str, Any]) -> dict[str, Histogram]:
    """The argument of `statistics_by_worker`, from what it returned; empty if that is empty."""
    return {name: delays.histogram(each) for name, each in recorded.get("by_worker", {}).items()}


def added(each: Iterable[Histogram]) -> Histogram:
    """The sum of histograms."""
    total: Counter[int] = Counter()
    for one in each:
        total.update(one)
    return dict(sorted(total.items()))


def together(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """`statistics_by_worker` of the updates of both."""
    one = histograms(before)
    other = histograms(after)
    return statistics_by_worker({name: added([one.get(name, {}), other.get(name, {})]) for name in {**one, **other}})


def _statistics(counts: Histogram) -> dict[str, Any]:
    updates = sum(counts.values())
    mean = sum(staleness * number for staleness, number in counts.items()) / updates
    percentiles = {n: _percentile(counts, percent * updates / 100) for n, percent in zip(_NAMES, _PERCENTILES)}
    pairs = [[staleness, number] for staleness, number in sorted(counts.items())]
    return {"updates": updates, "mean": round(mean, 4), **percentiles, "max": max(counts), "histogram": pairs}


def _percentile(counts: Histogram, most: float) -> int:
    """The smallest staleness with at least `most` updates up to it."""
    so_far = 0
    for staleness, number in sorted(counts.items()):
        so_far += number
        if so_far >= most:
            return staleness
    return max(counts)
