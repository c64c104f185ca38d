"""Runs against a baseline: differences of metrics over pairs of runs, and whether they are significant.

Two runs are a pair if they have the same seed, and the same values of the other keys that vary on both sides. The test
is Student's paired t test, two-sided. The p values of all comparisons of a report are corrected for their number as by
Holm (A Simple Sequentially Rejective Multiple Test Procedure, 1979).
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError
from psrun.runs.report import rows
from psrun.runs.report.runs import Run
from psrun.runs.report.spread import LEVEL, not_installed, scipy_stats
from psrun.runs.report.table import headings

_ROUNDING = 1e-12  # relative to the values: a smaller deviation of differences is that of floating point
_MOST_KEYS = 4  # that name a configuration
_NO_PAIR = "no pair"
_PURPOSE = "the test of --against"

Values = Mapping[Hashable, float]  # the metric by what makes two runs a pair


@dataclass(frozen=True)
class MeanDifference:
    """The difference of a metric between two samples.

    Attributes:
      number: of pairs; unpaired, of the runs of the smaller sample.
      mean, mean_against: of the two samples; paired, of the runs that are in pairs.
      low, high: the 95 % confidence interval of the difference; None without a test.
      p: of the t test; None without a test.
      adjusted: p, corrected for the number of comparisons.
      reason: why there is no test; else empty.
    """

    number: int
    mean: float
    mean_against: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted: float | None = None
    reason: str = ""

    @property
    def difference(self) -> float:
        return self.mean - self.mean_against


@dataclass(frozen=True)
class Compared:
    """A configuration against the baseline, by one metric.

    Attributes:
      configuration: the values of the keys that differ from the baseline, as text.
      difference: None if no run has a partner with this metric.
      runs, against: the names of the runs that were compared.
    """

    configuration: str
    metric: str
    difference: MeanDifference | None
    runs: Sequence[str]
    against: Sequence[str]


@dataclass(frozen=True)
class Comparisons:
    """All comparisons of a report.

    Attributes:
      notes: what the test is and assumes, and which runs were left out.
    """

    compared: Sequence[Compared]
    notes: Sequence[str]


def paired(values: Values, against: Values) -> MeanDifference | None:
    """The mean difference over the common keys, with a paired t test; None without a common key.

    Raises:
      ConfigError: SciPy is not installed.
    """
    keys = sorted(values.keys() & against.keys(), key=repr)
    if not keys:
        return None
    sample = [values[key] for key in keys]
    other = [against[key] for key in keys]
    found = MeanDifference(len(keys), statistics.fmean(sample), statistics.fmean(other))
    if len(keys) < 2:
        return replace(found, reason="one pair: no test")
    each = [a - b for a, b in zip(sample, other)]
    if _is_constant(each, [*sample, *other]):
        return replace(found, reason="all pairs differ by the same: no test")
    return _tested(found, scipy_stats(_PURPOSE).ttest_rel(sample, other))


def unpaired(values: Sequence[float], against: Sequence[float]) -> MeanDifference | None:
    """The difference of the means, with Welch's t test; None without a value. Raises as `paired`."""
    if not values or not against:
        return None
    number = min(len(values), len(against))
    found = MeanDifference(number, statistics.fmean(values), statistics.fmean(against))
    if number < 2:
        return replace(found, reason="one run: no test")
    if _is_constant(values, values) and _is_constant(against, against):
        return replace(found, reason="the runs of each side are equal: no test")
    return _tested(found, scipy_stats(_PURPOSE).ttest_ind(values, against, equal_var=False))


def corrected(found: Sequence[MeanDifference | None]) -> list[MeanDifference | None]:
    """The same differences with `adjusted`: all p values corrected for their number.

    Raises:
      ConfigError: statsmodels is not installed.
    """
    tested = [each for each in found if each is not None and each.p is not None]
    if not tested:
        return list(found)
    try:
        from statsmodels.stats.multitest import multipletests
    except ImportError as error:
        raise not_installed(_PURPOSE, error) from error
    adjusted = iter(multipletests([each.p for each in tested], method="holm")[1])
    return [each if each is None or each.p is None else replace(each, adjusted=float(next(adjusted))) for each in found]


def _is_constant(values: Sequence[float], scale: Sequence[float]) -> bool:
    return max(values) - min(values) <= _ROUNDING * max(map(abs, scale))


def _tested(found: MeanDifference, result: Any) -> MeanDifference:
    low, high = result.confidence_interval(1 - LEVEL)
    return replace(found, low=float(low), high=float(high), p=float(result.pvalue))


def compare(runs: Sequence[Run], against: Sequence[Run], metrics: Sequence[str], *, pair: bool = True) -> Comparisons:
    """Compares each configuration in `runs` with the one configuration in `against`, by each of `metrics`.

    Only completed runs count. Runs that are on both sides belong to `against`.

    Args:
      pair: whether runs are compared in pairs; otherwise all runs of a side are one sample.

    Raises:
      ConfigError: `against` has several configurations, no run is left or has a partner, or no run has a metric.
    """
    others = {run.path for run in against}
    runs = [run for run in runs if run.path not in others]
    candidates, baseline = _completed(runs, against)
    _check_metrics(metrics, [*candidates, *baseline])
    sides = _Sides(candidates, baseline, pair=pair)
    compared = [
        _compared(_text(parts), metric, those, baseline, sides, pair=pair)
        for parts, those in sides.configurations.items()
        for metric in metrics
    ]
    if pair and not any(each.difference for each in compared):
        raise ConfigError(_no_pairs(sides, candidates, baseline))
    differences = corrected([each.difference for each in compared])
    compared = [replace(each, difference=found) for each, found in zip(compared, differences)]
    left_out = len(runs) + len(against) - len(candidates) - len(baseline)
    notes = _notes(compared, sides, pair=pair)
    if pair and sides.are_repeated([*sides.configurations.values(), baseline]):
        notes.append("Runs of the same configuration and seed count as their mean.")
    if alone := _without_partner(sides, baseline, metrics) if pair else 0:
        notes.append(f"Left out: runs without a partner ({alone}).")
    if left_out:
        notes.append(f"Left out: runs that are not completed ({left_out}).")
    return Comparisons(compared, notes)


def _completed(runs: Sequence[Run], against: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The completed runs of both sides. Raises ConfigError if a side has none."""
    if not runs:
        raise ConfigError("all runs are in --against; name the runs to compare with them before --against")
    completed = [[run for run in side if run.state.outcome == "completed"] for side in (runs, against)]
    for side, whole, place in zip(completed, (runs, against), ("before", "in")):
        if not side:
            count = f"{len(whole)} of {len(whole)} runs {place} --against"
            raise ConfigError(f"{count} are not completed; only completed runs are compared")
    return completed[0], completed[1]


def _check_metrics(metrics: Sequence[str], runs: Sequence[Run]) -> None:
    known = rows.metric_names(runs)
    if not metrics:
        raise ConfigError("no completed run has val_loss or loss to compare; name a metric with --metric")
    for name in metrics:
        if name not in known:
            raise ConfigError(f"--metric {name}: no completed run has it.{did_you_mean(name, known)}")


class _Sides:
    """What the keys that vary mean: those that pair runs, and those that make a configuration.

    Attributes:
      matched: the keys that pair runs, the seed first.
      configurations: the runs by their configuration, as KEY=VALUE of the keys that the baseline has otherwise.
    """

    def __init__(self, runs: Sequence[Run], baseline: Sequence[Run], *, pair: bool) -> None:
        everything = [*runs, *baseline]
        self._rows = {run.path: rows.row(run) for run in everything}
        axes = [key for key in rows.axes(everything) if key != rows.SEED]
        both = [key for key in axes if self._pairs(self._texts(key, runs), self._texts(key, baseline))] if pair else []
        self.matched = [rows.SEED, *both]
        treated = [key for key in axes if key not in both]
        several = {key: self._texts(key, baseline) for key in treated if len(self._texts(key, baseline)) > 1}
        if several:
            varied = "; ".join(f"{key}: {', '.join(sorted(values))}" for key, values in several.items())
            raise ConfigError(f"--against has several configurations ({varied}); name the folders of one of them")
        self.configurations: dict[tuple[str, ...], list[Run]] = {}
        for run, parts in zip(runs, self._parts(runs, baseline, treated)):
            self.configurations.setdefault(parts, []).append(run)

    @staticmethod
    def _pairs(values: set[str], against: set[str]) -> bool:
        """Whether a key pairs runs: it varies on both sides, or in the baseline, which has all values of the others."""
        return len(values & against) > 1 or (len(against) > 1 and values <= against)

    def _texts(self, key: str, runs: Iterable[Run]) -> set[str]:
        return {rows.shown(self._rows[run.path].get(key)) for run in runs}

    def _parts(self, runs: Sequence[Run], baseline: Sequence[Run], keys: Sequence[str]) -> list[tuple[str, ...]]:
        """The configuration of each run: KEY=VALUE for the keys whose value the baseline does not have."""
        short = headings(keys)
        parts: list[list[str]] = [[] for _ in runs]
        for key in keys:
            values = rows.briefly([self._rows[run.path].get(key) for run in (*runs, *baseline)], distinct=True)
            for of_run, value in zip(parts, values):
                if value not in values[len(runs) :]:
                    of_run.append(f"{short[key]}={value or 'null'}")
        return [tuple(of_run) for of_run in parts]

    def _key(self, run: Run) -> Hashable:
        """What makes two runs a pair."""
        return tuple(rows.shown(self._rows[run.path].get(name)) for name in self.matched)

    def are_repeated(self, samples: Iterable[Sequence[Run]]) -> bool:
        """Whether any of the samples has several runs with the same key."""
        return any(len({self._key(run) for run in sample}) < len(sample) for sample in samples)

    def values(self, runs: Sequence[Run], metric: str) -> dict[Hashable, float]:
        """The metric of runs by the keys that pair them; runs that agree in these count as their mean."""
        by_key: dict[Hashable, list[float]] = {}
        for run in runs:
            value = rows.metrics(run).get(metric)
            if value is not None:
                by_key.setdefault(self._key(run), []).append(value)
        return {key: statistics.fmean(values) for key, values in by_key.items()}

    def seeds(self, runs: Sequence[Run]) -> str:
        return ", ".join(sorted(self._texts(rows.SEED, runs))) or "none"


def _text(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _MOST_KEYS} more" if len(parts) > _MOST_KEYS else ""
    return ", ".join(parts[:_MOST_KEYS]) + more or "the same configuration"


def _compared(
    text: str, metric: str, runs: Sequence[Run], baseline: Sequence[Run], sides: _Sides, *, pair: bool
) -> Compared:
    if pair:
        found = paired(sides.values(runs, metric), sides.values(baseline, metric))
    else:
        sample, other = ([rows.metrics(run).get(metric) for run in side] for side in (runs, baseline))
        found = unpaired([v for v in sample if v is not None], [v for v in other if v is not None])
    return Compared(text, metric, found, [run.name for run in runs], [run.name for run in baseline])


def _no_pairs(sides: _Sides, runs: Sequence[Run], baseline: Sequence[Run]) -> str:
    return (
        f"no run has a partner in --against with the same {' and '.join(sides.matched)} (seeds {sides.seeds(runs)}; "
        f"in --against {sides.seeds(baseline)}); run the same seeds on both sides, or compare the means by --unpaired"
    )


def _without_partner(sides: _Sides, baseline: Sequence[Run], metrics: Sequence[str]) -> int:
    """The number of runs, on the left of --against, that are in no pair."""
    partners = {key for metric in metrics for key in sides.values(baseline, metric)}
    return sum(
        not (partners & {key for metric in metrics for key in sides.values([run], metric)})
        for those in sides.configurations.values()
        for run in those
    )


def _notes(compared: Sequence[Compared], sides: _Sides, *, pair: bool) -> list[str]:
    tests = sum(each.difference is not None and each.difference.p is not None for each in compared)
    if pair:
        same = " and ".join(sides.matched)
        what = f"Paired by {same}. Student's paired t test, two-sided; it assumes that differences are about normal."
    else:
        what = "Unpaired: Welch's t test of the means, two-sided; it assumes independent, about normal samples."
    notes = [what]
    if tests > 1:
        notes.append(f"p is corrected for {tests} comparisons as by Holm; the intervals are not corrected.")
    if tests:
        notes.append(f"*: significant, p < {LEVEL}.")
    if any(each.difference and each.difference.number < 2 for each in compared):
        notes.append("A test needs two pairs or more: run more seeds.")
    return notes


def records(comparison: Comparisons) -> tuple[list[rows.Row], list[str]]:
    """Rows and columns for programs."""
    numbers = ["number", "mean", "mean_against", "difference", "low", "high", "p", "adjusted"]
    made = []
    for each in comparison.compared:
        found = each.difference
        values = {name: getattr(found, name) if found else None for name in numbers}
        values["number"] = found.number if found else 0
        texts = {"configuration": each.configuration, "metric": each.metric}
        lists = {"runs": list(each.runs), "against": list(each.against)}
        made.append({**texts, **values, "reason": found.reason if found else _NO_PAIR, **lists})
    return made, ["configuration", "metric", *numbers, "reason", "runs", "against"]


def shown(comparison: Comparisons) -> tuple[list[rows.Row], list[str], Sequence[str]]:
    """Rows and columns for people, and the lines below the table."""
    interval = f"{1 - LEVEL:.0%} interval"
    columns = ["configuration", "metric", "n", "mean", "against", "difference", interval, "p"]
    made: list[rows.Row] = []
    for each in comparison.compared:
        found = each.difference
        texts: rows.Row = {"configuration": each.configuration, "metric": each.metric}
        if found is None:
            made.append({**texts, "n": 0, "p": _NO_PAIR})
            continue
        bounds = "" if found.low is None else f"{_signed(found.low)} to {_signed(found.high)}"
        p = found.reason if found.adjusted is None else f"{found.adjusted:.2g}{'  *' if found.adjusted < LEVEL else ''}"
        means = {"n": found.number, "mean": found.mean, "against": found.mean_against}
        made.append({**texts, **means, "difference": _signed(found.difference), interval: bounds, "p": p})
    return made, columns, comparison.notes


def _signed(value: float | None) -> str:
    return "" if value is None else f"{'+' if value >= 0 else ''}{rows.shown(value)}"
