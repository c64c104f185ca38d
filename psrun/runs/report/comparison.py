"""Runs against a baseline: differences of metrics over pairs of runs, and whether they are significant.

Two runs are a pair if they have the same seed. Other keys that vary on both sides, or in the baseline, divide both
sides into parts: each part is compared with the runs of the baseline that have the same values. Runs of different parts
with the same seed are not independent, and are not pooled. The test is Student's paired t test, two-sided. The p values
of all comparisons of a report are corrected for their number as by Holm (A Simple Sequentially Rejective Multiple Test
Procedure, 1979).
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
_NO_TEST = "no test"
_EQUAL_PAIRS = f"all pairs differ by the same: {_NO_TEST}"
_EQUAL_SIDES = f"the runs of each side are equal: {_NO_TEST}"
_PURPOSE = "the test of --against"

Values = Mapping[Hashable, float]  # the metric by seed


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
      configuration: the values of the keys that differ from the baseline, and of those that divide both sides, as text.
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
        return replace(found, reason=f"one pair: {_NO_TEST}")
    each = [a - b for a, b in zip(sample, other)]
    if _is_constant(each, [*sample, *other]):
        return replace(found, reason=_EQUAL_PAIRS)
    return _tested(found, scipy_stats(_PURPOSE).ttest_rel(sample, other))


def unpaired(values: Sequence[float], against: Sequence[float]) -> MeanDifference | None:
    """The difference of the means, with Welch's t test; None without a value. Raises as `paired`."""
    if not values or not against:
        return None
    number = min(len(values), len(against))
    found = MeanDifference(number, statistics.fmean(values), statistics.fmean(against))
    if number < 2:
        return replace(found, reason=f"one run: {_NO_TEST}")
    if _is_constant(values, values) and _is_constant(against, against):
        return replace(found, reason=_EQUAL_SIDES)
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
    """Compares each configuration in `runs` with its baseline in `against`, by each of `metrics`.

    Only completed runs count. Runs that are on both sides belong to `against`.

    Args:
      pair: whether runs are compared in pairs; otherwise all runs of a side are one sample.

    Raises:
      ConfigError: `against` has several configurations for one in `runs`, no run is left or has a partner, or no run
        has a metric.
    """
    others = {run.path for run in against}
    runs = [run for run in runs if run.path not in others]
    candidates, baseline = _completed(runs, against)
    _check_metrics(metrics, [*candidates, *baseline])
    sides = _Sides(candidates, baseline)
    compared = []
    for each in sides.configurations:
        for metric in metrics:
            compared.append(_compared(each, metric, sides, pair=pair))
    if pair and not any(each.difference for each in compared):
        raise ConfigError(_no_pairs(sides, candidates, baseline))
    differences = corrected([each.difference for each in compared])
    compared = [replace(each, difference=found) for each, found in zip(compared, differences)]
    left_out = len(runs) + len(against) - len(candidates) - len(baseline)
    notes = _notes(compared, sides, pair=pair)
    if pair and sides.have_repeated_seeds():
        notes.append("Runs of the same configuration and seed count as their mean.")
    if alone := _without_partner(sides, metrics) if pair else 0:
        notes.append(f"Left out: runs without a partner ({alone}).")
    if left_out:
        notes.append(f"Left out: runs that are not completed ({left_out}).")
    notes += _unequal_examples(sides)
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


@dataclass(frozen=True)
class _Configuration:
    """Runs that differ at most in the seed, and the runs of the baseline to compare them with.

    Attributes:
      text: KEY=VALUE for the keys whose value the baseline does not have, and for those that divide both sides.
    """

    text: str
    runs: list[Run]
    baseline: Sequence[Run]


class _Sides:
    """What the keys that vary mean: those that divide both sides into parts, and those that make a configuration.

    Attributes:
      within: the keys that divide both sides.
    """

    def __init__(self, runs: Sequence[Run], baseline: Sequence[Run]) -> None:
        everything = [*runs, *baseline]
        found = {run.path: rows.row(run) for run in everything}
        axes = [key for key in rows.axes(everything) if key != rows.SEED]
        self._texts: dict[str, dict[Any, str]] = {}  # of each key, by the path of a run
        for key in (rows.SEED, *axes):
            texts = rows.briefly([found[run.path].get(key) for run in everything], distinct=True)
            self._texts[key] = {run.path: text for run, text in zip(everything, texts)}
        self.within = [key for key in axes if self._divides(self._values(key, runs), self._values(key, baseline))]
        treated = [key for key in axes if key not in self.within]
        self._check(treated, baseline)
        self._short = headings(axes)
        by_values: dict[Hashable, _Configuration] = {}
        for run in runs:
            differing = [key for key in treated if self._text(key, run) not in self._values(key, baseline)]
            part = self._part(run)
            values = (part, *(self._assigned(key, run) for key in differing))
            if values not in by_values:
                same = [other for other in baseline if self._part(other) == part]
                by_values[values] = _Configuration(self._named(differing, run), [], same)
            by_values[values].runs.append(run)
        self.configurations = list(by_values.values())

    @staticmethod
    def _divides(values: set[str], against: set[str]) -> bool:
        """Whether a key varies on both sides, or in the baseline, which has all values of the others."""
        return len(values & against) > 1 or (len(against) > 1 and values <= against)

    def _check(self, treated: Sequence[str], baseline: Sequence[Run]) -> None:
        """Raises ConfigError if the baseline has several values of a key that makes a configuration."""
        varied = []
        for key in treated:
            values = self._values(key, baseline)
            if len(values) > 1:
                varied.append(f"{key}: {', '.join(sorted(values))}")
        if varied:
            listed = "; ".join(varied)
            raise ConfigError(f"--against has several configurations ({listed}); name the folders of one of them")

    def _text(self, key: str, run: Run) -> str:
        return self._texts[key][run.path]

    def _values(self, key: str, runs: Iterable[Run]) -> set[str]:
        return {self._text(key, run) for run in runs}

    def _part(self, run: Run) -> tuple[str, ...]:
        """The values of the keys that divide both sides."""
        return tuple(self._text(key, run) for key in self.within)

    def _assigned(self, key: str, run: Run) -> str:
        return f"{self._short[key]}={self._text(key, run) or 'null'}"

    def _named(self, differing: Sequence[str], run: Run) -> str:
        """The configuration of a run as text, with the first of the keys in which it differs from the baseline."""
        parts = [self._assigned(key, run) for key in differing[:_MOST_KEYS]]
        if len(differing) > _MOST_KEYS:
            parts[-1] += f" and {len(differing) - _MOST_KEYS} more"
        parts += [self._assigned(key, run) for key in self.within]
        return ", ".join(parts) or "the same configuration"

    def have_repeated_seeds(self) -> bool:
        """Whether several runs of a configuration, or of its baseline, have the same seed."""
        for each in self.configurations:
            for side in (each.runs, each.baseline):
                if len(self._values(rows.SEED, side)) < len(side):
                    return True
        return False

    def values(self, runs: Sequence[Run], metric: str) -> dict[Hashable, float]:
        """The metric of runs by seed; runs with the same seed count as their mean."""
        by_seed: dict[Hashable, list[float]] = {}
        for run in runs:
            value = rows.metrics(run).get(metric)
            if value is not None:
                by_seed.setdefault(self._text(rows.SEED, run), []).append(value)
        return {seed: statistics.fmean(values) for seed, values in by_seed.items()}

    def seeds(self, runs: Sequence[Run]) -> str:
        return ", ".join(sorted(self._values(rows.SEED, runs))) or "none"


def _compared(configuration: _Configuration, metric: str, sides: _Sides, *, pair: bool) -> Compared:
    runs = configuration.runs
    baseline = configuration.baseline
    if pair:
        found = paired(sides.values(runs, metric), sides.values(baseline, metric))
    else:
        sample, other = ([rows.metrics(run).get(metric) for run in side] for side in (runs, baseline))
        found = unpaired([v for v in sample if v is not None], [v for v in other if v is not None])
    names = [run.name for run in runs]
    return Compared(configuration.text, metric, found, names, [run.name for run in baseline])


def _unequal_examples(sides: _Sides) -> list[str]:
    """A line about configurations that were trained on more or fewer examples than their baseline; none without."""
    parts = []
    for each in sides.configurations:
        own = _examples_of(each.runs)
        of_baseline = _examples_of(each.baseline)
        if own and of_baseline and own != of_baseline:
            parts.append(f"{each.text} on {' or '.join(own)} against {' or '.join(of_baseline)}")
    if not parts:
        return []
    remedy = "trainer.steps_per_epoch=null trains each run on whole passes over the data"
    return [f"Not trained on equally many examples: {'; '.join(parts)}. {remedy}."]


def _examples_of(runs: Sequence[Run]) -> list[str]:
    """The different numbers of examples of runs, by size."""
    numbers = set()
    for run in runs:
        number = rows.num_examples(run)
        if number is not None:
            numbers.add(number)
    return [f"{number:,}" for number in sorted(numbers)]


def _no_pairs(sides: _Sides, runs: Sequence[Run], baseline: Sequence[Run]) -> str:
    same = " and ".join([rows.SEED, *sides.within])
    return (
        f"no run has a partner in --against with the same {same} (seeds {sides.seeds(runs)}; "
        f"in --against {sides.seeds(baseline)}); run the same seeds on both sides, or compare the means by --unpaired"
    )


def _without_partner(sides: _Sides, metrics: Sequence[str]) -> int:
    """The number of runs, on the left of --against, that are in no pair."""
    number = 0
    for each in sides.configurations:
        partners = {seed for metric in metrics for seed in sides.values(each.baseline, metric)}
        for run in each.runs:
            own = {seed for metric in metrics for seed in sides.values([run], metric)}
            number += not partners & own
    return number


def _notes(compared: Sequence[Compared], sides: _Sides, *, pair: bool) -> list[str]:
    tests = sum(each.difference is not None and each.difference.p is not None for each in compared)
    if pair:
        what = "Student's paired t test, two-sided; it assumes that differences are about normal."
        how = "Paired by seed"
    else:
        what = "Welch's t test of the means, two-sided; it assumes independent, about normal samples."
        how = "Unpaired"
    if sides.within:
        how += f", within the same {' and '.join(sides.within)}"
    notes = [f"{how}. {what}"]
    if tests > 1:
        notes.append(f"p is corrected for {tests} comparisons as by Holm; the intervals are not corrected.")
    if tests:
        notes.append(f"*: significant, p < {LEVEL}.")
    for reason in dict.fromkeys(each.difference.reason for each in compared if each.difference):
        if reason in (_EQUAL_PAIRS, _EQUAL_SIDES):
            notes.append(f"{reason[0].upper()}{reason[1:]}.")
    if any(each.difference and each.difference.number < 2 for each in compared):
        least = "two pairs or more" if pair else "two runs or more on each side"
        notes.append(f"A test needs {least}: run more seeds.")
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


SPARE = ("mean", "against")  # the columns that a terminal hides first


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
        bounds = ""
        if found.low is not None and found.high is not None:
            bounds = (
                f"[{_signed(found.low, digits=2)},{_signed(found.high, digits=2)}]"  # one word, which is not broken
            )
        p = _NO_TEST
        if found.adjusted is not None:
            mark = "  *" if found.adjusted < LEVEL else ""
            p = f"{found.adjusted:.2g}{mark}"
        means = {"n": found.number, "mean": found.mean, "against": found.mean_against}
        difference = _signed(found.difference, digits=4)
        made.append({**texts, **means, "difference": difference, interval: bounds, "p": p})
    return made, columns, comparison.notes


def _signed(value: float, *, digits: int) -> str:
    sign = "+" if value >= 0 else ""
    return f"{sign}{rows.rounded(value, digits=digits)}"
