"""Runs beside what was predicted of them by virtual clusters.

A run with workers is beside each plan and each training of a virtual cluster in the report whose settings are equal,
the sizes of the clusters included. The seed may differ, and the keys of a cluster that real and virtual ones do not
share. A training of a virtual cluster also has a prediction of itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from psrun.config.clusters import PLACEMENT_RULES
from psrun.config.run_config import FROM_DATA
from psrun.config.schema import AUTO
from psrun.files import as_mapping, as_number
from psrun.results.run_state import printable
from psrun.runs.report import rows
from psrun.runs.report.runs import Run
from psrun.runs.sweeps import sweep

COLUMN = "predicted_by"  # of the rows for programs
_NAMES = ("steps_per_s", "staleness", "waiting")
_TITLES = {"steps_per_s": "steps/s", "staleness": "staleness", "waiting": "waiting"}
_BOUNDS = ("median", "least", "most")
_NOT_COMPARED = (rows.SEED, "mode", *rows.NOT_COMPARED)
_PLACEMENT = "cluster.placement"
_SLOW = "cluster.slow_workers"
_REPLICAS = "cluster.replicas_per_worker"
_LIKE = "cluster.like"
_MOST_KEYS = 3  # that say why runs have no prediction
_FAR = 1.1  # times more or less than predicted
ITSELF = "itself"
_MOST_ROWS = 20  # of the table in a terminal

SPARE = ("waiting", "predicted waiting", "staleness", "predicted staleness", "like")  # that a terminal hides first


@dataclass(frozen=True)
class Value:
    """A number that was predicted, and measured.

    Attributes:
      predicted: the median over several seeds.
      least, most: of the seeds.
      measured: None where it was not.
    """

    predicted: float
    least: float
    most: float
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """What was predicted, divided by what was measured."""
        return self.predicted / self.measured if self.measured else None


@dataclass(frozen=True)
class Pair:
    """A run and a prediction of it.

    Attributes:
      source: the run or the plan that has the prediction; the run itself in virtual time.
      like: the run whose step time the prediction has, as its configuration names it; None for another time.
      values: by name: `steps_per_s`; `staleness`, the mean; `waiting`, the part of the time in which workers wait for
        their next execution.
    """

    run: Run
    source: Run
    like: str | None
    values: Mapping[str, Value]

    @property
    def is_virtual(self) -> bool:
        """Whether the run was measured in virtual time."""
        return self.run is self.source


@dataclass(frozen=True)
class Predictions:
    """All predictions of a report.

    Attributes:
      pairs: in the order of the runs.
      alone: runs with workers of which nothing in the report is a prediction.
      why: for the first of these, which settings of the most similar prediction are others; else empty.
    """

    pairs: Sequence[Pair]
    alone: Sequence[Run] = ()
    why: str = ""

    @cached_property
    def by_run(self) -> dict[str, list[dict[str, Any]]]:
        """The predictions of each run that has any, for programs, by its name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for pair in self.pairs:
            found.setdefault(pair.run.name, []).append(_record(pair))
        return found


def of_runs(runs: Sequence[Run]) -> Predictions:
    """The predictions of `runs`, which are in the same runs."""
    sources = [run for run in runs if _prediction(run)]
    if not sources:
        return Predictions([])
    by_settings: dict[str, list[Run]] = {}
    for source in sources:
        by_settings.setdefault(_as_text(source), []).append(source)
    pairs = []
    alone = []
    for run in runs:
        if _is_virtual(run):
            pairs += [_pair(run, run)] if _prediction(run) else []
            continue
        if not _is_measured(run):
            continue
        found = [source for source in by_settings.get(_as_text(run), ()) if not _differing_numbers(run, source)]
        pairs += [_pair(run, source) for source in found]
        if not found:
            alone.append(run)
    return Predictions(pairs, alone, _why_alone(alone[0], sources) if alone else "")


# -- which runs are a pair


def _prediction(run: Run) -> Mapping[str, Any]:
    return as_mapping(run.result.get("prediction"))


def _is_virtual(run: Run) -> bool:
    """Whether virtual time was measured."""
    return bool(as_mapping(run.result.get("virtual")))


def _is_measured(run: Run) -> bool:
    """Whether the rate of workers was measured."""
    has_workers = bool(as_mapping(run.result.get("consistency")))
    return has_workers and bool(as_number(run.result.get("steps_per_s")))


def _settings(run: Run) -> dict[str, Any]:
    """The settings that a run and its prediction have in common, without those that follow from the data."""
    settings = {**_size(run), "experiment": run.overrides.get("experiment"), _PLACEMENT: PLACEMENT_RULES[0]}
    for key, value in run.written.items():
        if key in _NOT_COMPARED or key in FROM_DATA or sweep.is_own_key(key) or rows.is_aside(key):
            continue
        if key.startswith("cluster.") and not _is_of_all_clusters(key, value):
            continue
        settings[key] = value
    return settings


def _is_of_all_clusters(key: str, value: Any) -> bool:
    """Whether a key of a cluster says something that real and virtual clusters may have."""
    if key == _REPLICAS:
        return value not in (None, 1)
    if key.startswith(_SLOW):
        return value is not None
    return key == _PLACEMENT


def _size(run: Run) -> dict[str, Any]:
    """The workers that train and the parameter servers, as recorded, or for a plan as configured."""
    recorded = as_mapping(run.result.get("cluster"))
    return {
        f"cluster.{name}": recorded.get(name, run.written.get(f"cluster.{name}")) for name in ("num_workers", "num_ps")
    }


def _as_text(run: Run) -> str:
    return json.dumps(_settings(run), sort_keys=True, default=str)


def _differing_numbers(run: Run, source: Run) -> list[str]:
    """The numbers that may follow from the data and are others: a plan keeps `auto`, and a run has the number."""
    differing = []
    for key in FROM_DATA:
        values = [each.written.get(key) for each in (run, source)]
        follows = values[1] == AUTO and run.overrides.get(key, AUTO) == AUTO
        if values[0] != values[1] and not follows:
            differing.append(key)
    return differing


def _why_alone(run: Run, sources: Sequence[Run]) -> str:
    """How the most similar prediction differs from a run."""
    own = _settings(run)
    nearest = None
    fewest: list[str] = []
    for source in sources:
        others = _settings(source)
        keys = [key for key in {**others, **own} if own.get(key) != others.get(key)]
        keys += _differing_numbers(run, source)
        if nearest is None or len(keys) < len(fewest):
            nearest = source
            fewest = keys
    assert nearest is not None
    more = f" and {len(fewest) - _MOST_KEYS} more keys" if len(fewest) > _MOST_KEYS else ""
    return f"{nearest.name} differs in {', '.join(fewest[:_MOST_KEYS])}{more}"


# -- the numbers


def _pair(run: Run, source: Run) -> Pair:
    prediction = _prediction(source)
    measured = _measured(run)
    values = {}
    for name in _NAMES:
        recorded = as_mapping(prediction.get(name))
        bounds = [number for bound in _BOUNDS if (number := as_number(recorded.get(bound))) is not None]
        if len(bounds) == len(_BOUNDS):
            values[name] = Value(bounds[0], bounds[1], bounds[2], measured.get(name))
    return Pair(run, source, source.written.get(_LIKE), values)


def _measured(run: Run) -> dict[str, float | None]:
    """What a run found, by the names of a prediction."""
    virtual = as_mapping(run.result.get("virtual"))
    steps = as_number(as_mapping(run.result.get("steps")).get("applied"))
    seconds = as_number(virtual.get("time_s"))
    rate = as_number((virtual or run.result).get("steps_per_s"))
    if virtual and seconds and steps:
        rate = steps / seconds  # of all epochs
    if not _is_of_one_process(run):
        seconds = None
    elif not virtual and rate and steps:
        seconds = steps / rate
    staleness = as_number(as_mapping(run.result.get("staleness")).get("mean"))
    return {"steps_per_s": rate, "staleness": staleness, "waiting": _waiting(run, seconds)}


def _is_of_one_process(run: Run) -> bool:
    """Whether one process did all steps, so that all numbers are of the same steps."""
    repeated = as_mapping(run.result.get("steps")).get("repeated")
    return not (run.written.get("resume") or run.result.get("recoveries") or repeated)


def _waiting(run: Run, seconds: float | None) -> float | None:
    """The part of the time in which workers waited for their next execution; None if it is not known.

    Args:
      seconds: in which the workers trained, since the chief started; None if that is not known.
    """
    waited_s = as_mapping(as_mapping(run.result.get("consistency")).get("waited_s"))
    if not waited_s or not seconds:
        return None
    total_s = sum(as_number(each) or 0.0 for each in waited_s.values())
    return total_s / (len(waited_s) * seconds)


# -- for programs and people


def _record(pair: Pair) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pair.values.items():
        values[name] = {
            "predicted": value.predicted,
            "least": value.least,
            "most": value.most,
            "measured": value.measured,
        }
    if "steps_per_s" in pair.values:
        values["steps_per_s"]["ratio"] = pair.values["steps_per_s"].ratio
    named = {"run": pair.source.name, "folder": printable(pair.source.path), "like": pair.like}
    return {**named, "virtual_time": pair.is_virtual, **values}


def shown(predictions: Predictions, most: int | None = _MOST_ROWS) -> tuple[list[rows.Row], list[str], list[str]]:
    """Rows and columns for people, and the lines below the table. Runs in virtual time that came as predicted have a
    line together.

    Args:
      most: of the rows; None for all.
    """
    alone = [pair for pair in predictions.pairs if not _came_as_predicted_in_virtual_time(pair)]
    made = [_row(pair) for pair in alone[:most]]
    columns = ["run", "predicted by", "like"]
    for name in _NAMES:
        columns += [f"predicted {_TITLES[name]}", _TITLES[name]]
    columns.insert(columns.index(_TITLES["steps_per_s"]) + 1, "ratio")
    columns = [column for column in columns if any(row.get(column) is not None for row in made)]
    return made, columns, [*_notes(alone, len(made)), *_lines(predictions)]


def _came_as_predicted_in_virtual_time(pair: Pair) -> bool:
    rate = pair.values.get("steps_per_s")
    if not pair.is_virtual or rate is None or rate.ratio is None:
        return pair.is_virtual
    return 1 / _FAR <= rate.ratio <= _FAR


def _row(pair: Pair) -> rows.Row:
    source = ITSELF if pair.is_virtual else pair.source.name
    row: rows.Row = {"run": pair.run.name, "predicted by": source, "like": pair.like}
    for name, value in pair.values.items():
        row[f"predicted {_TITLES[name]}"] = value.predicted
        row[_TITLES[name]] = value.measured
    if "steps_per_s" in pair.values:
        row["ratio"] = pair.values["steps_per_s"].ratio
    return row


def _notes(pairs: Sequence[Pair], num_shown: int) -> Iterator[str]:
    """What the columns of the table are."""
    if num_shown < len(pairs):
        yield f"and {len(pairs) - num_shown:,} more (--json has all)"
    if not pairs:
        return
    yield "ratio: predicted steps/s divided by measured; waiting: the part of the time in which workers wait"
    if any(pair.is_virtual for pair in pairs):
        yield f"{ITSELF}: a run in virtual time that is not as predicted; tasks that are lost may be the reason"
    if any(pair.like is not None and not pair.is_virtual for pair in pairs):
        yield "like: the run whose measured step time the prediction uses; its own row is no test"


def _lines(predictions: Predictions) -> Iterator[str]:
    """What the table does not show."""
    ratios = []
    for pair in predictions.pairs:
        if pair.is_virtual and "steps_per_s" in pair.values:
            ratios.append(pair.values["steps_per_s"].ratio)
    known = [ratio for ratio in ratios if ratio is not None]
    if known:
        least, most = (rows.rounded(ratio, digits=3) for ratio in (min(known), max(known)))
        between = least if least == most else f"{least} to {most}"
        what = "1 virtual run" if len(known) == 1 else f"{len(known):,} virtual runs"
        yield f"{what}: predicted steps/s are {between} times those in virtual time"
    if predictions.alone:
        many = len(predictions.alone)
        what = (
            f"run {predictions.alone[0].name}" if many == 1 else f"{many:,} runs, such as {predictions.alone[0].name}"
        )
        yield f"without a prediction: {what}: {predictions.why}"
