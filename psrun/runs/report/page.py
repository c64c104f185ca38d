"""One page with charts of many runs: a single file that loads nothing from elsewhere."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from string import Template
from typing import Any

from psrun import __version__
from psrun.config import choices
from psrun.errors import PsrunError
from psrun.files import as_mapping, as_mappings, as_number
from psrun.results.events import Event
from psrun.results.run_folder import placement_of
from psrun.runs import states
from psrun.runs.report import comparison, predicted, rows
from psrun.runs.report.ranking import NUMBER, Ranking, held_out
from psrun.runs.report.runs import Run, events
from psrun.runs.report.table import headings
from psrun.runs.sweeps import sweep

_MOST_POINTS = 120  # of a task's measurements over time
_MARKS = ("checkpoint", "evaluation", "failure", "restored")
Values = dict[str, Any]


def render(
    runs: Sequence[Run],
    records: Sequence[rows.Row],
    axes: Sequence[str],
    *,
    ranking: Ranking,
    named: Sequence[str],
    predictions: predicted.Predictions,
    compared: comparison.Comparisons | None = None,
) -> str:
    """The page as HTML.

    Args:
      runs: in the order of the list.
      records: their rows.
      axes: the keys in which runs differ, for the filters.
      named: the folders of the report.
      predictions: of the runs, for their own card.
      compared: the runs against a baseline, for their own card.

    Raises:
      PsrunError: the package with the plotting library is not installed.
    """
    try:
        library = importlib.import_module("vl_convert").javascript_bundle()
    except ImportError as error:
        raise PsrunError(f"--html draws with Vega-Lite: pip install 'psrun[report]' ({error})") from error
    here = resources.files(__package__)
    names = ("page.html", "page.css", "charts.js", "page.js")
    html, style, charts, script = ((here / name).read_text(encoding="utf-8") for name in names)
    values = {**_data(runs, records, axes, named), **_ranked(runs, ranking)}
    values |= {"compared": _compared(compared), "predicted": _predicted(predictions)}
    data = json.dumps(values, allow_nan=False, separators=(",", ":"), default=str)
    data = data.replace("<", "\\u003c")  # data must not close the element that holds it
    return Template(html).substitute(data=data, style=style, library=library, charts=charts, script=script)


def _data(runs: Sequence[Run], records: Sequence[rows.Row], axes: Sequence[str], named: Sequence[str]) -> Values:
    configs = [run.used for run in runs if run.config]
    first = configs[0] if configs else {}
    common = {k: value for k, value in first.items() if all(k in each and each[k] == value for each in configs)}
    versions = {str(as_mapping(run.result.get("versions")).get("psrun")) for run in runs}
    return {
        "named": [name.rstrip("/").rpartition("/")[2] or name for name in named],
        "made": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "psrun": __version__,
        "number": NUMBER,
        "versions": sorted(versions - {"None"}),
        "axes": headings(axes),
        "common": {key: rows.shown(value) for key, value in common.items()},
        "runs": [_run(*each, common) for each in zip(runs, records, rows.groups(runs), _texts(records, axes))],
    }


def _ranked(runs: Sequence[Run], ranking: Ranking) -> Values:
    names = ranking.first(rows.metric_names(runs))
    lower = [name for name in names if sweep.mode_of(name) == "min"]
    return {"metrics": names, "lower": lower, "ranking": {"metric": ranking.metric, "mode": ranking.mode}}


def _compared(compared: comparison.Comparisons | None) -> Values | None:
    """The comparisons as numbers, for the chart, and as in the terminal."""
    if compared is None:
        return None
    table, _, notes = comparison.shown(compared)
    records, _ = comparison.records(compared)
    return {"rows": records, "table": table, "notes": notes}


def _predicted(predictions: predicted.Predictions) -> Values | None:
    """The predictions as in the terminal; None without any."""
    table, columns, notes = predicted.shown(predictions, most=None)
    if not notes:
        return None
    by_column = [rows.briefly([row.get(column) for row in table]) for column in columns]
    return {"columns": columns, "rows": list(zip(*by_column)), "notes": notes}


def _texts(records: Sequence[rows.Row], axes: Sequence[str]) -> list[dict[str, str]]:
    """The values of each run by axis."""
    by_axis = {axis: rows.briefly([each.get(axis) for each in records], distinct=True) for axis in axes}
    return [{axis: texts[place] for axis, texts in by_axis.items()} for place in range(len(records))]


def _run(run: Run, row: rows.Row, group: int, axes: Mapping[str, str], common: Mapping[str, Any]) -> Values:
    happened, problem = events(run)
    cluster = as_mapping(run.result.get("cluster"))
    return {
        "name": run.name,
        "group": group,
        "status": run.state.outcome,
        "style": states.state(run.state.outcome).style,
        "error": run.error,
        "problem": problem,
        "called": run.called,
        "axes": axes,
        "numbers": {axis: as_number(row.get(axis)) for axis in axes},
        "metrics": rows.metrics(run),
        **{name: row[name] for name in rows.MEASURED},
        **{name: row.get(name) for name in rows.VIRTUAL},
        "workers": as_number(cluster.get("num_workers")),
        "ps": as_number(cluster.get("num_ps")),
        "topology": cluster.get("topology"),
        "step_time": _stages(run),
        "staleness": _staleness(run),
        "curves": _curves(happened),
        "epochs": [_epoch(event) for event in happened if event.kind == "epoch"],
        "bytes": _bytes(run),
        "system": _system(happened),
        "marks": [_mark(event) for event in happened if event.kind in _MARKS],
        "recovered": as_mappings(run.result.get("recoveries")),
        "held_out": held_out(run),
        "diff": {key: rows.shown(value) or "null" for key, value in run.used.items() if key not in common},
    }


def _curves(events: Sequence[Event]) -> dict[str, list[list[float | None]]]:
    """For each metric: steps, seconds since the start, values, examples, virtual seconds; of evaluations as val_*.

    Examples are those of the applied updates, as `rows.examples_per_step` gives them; None before the first epoch ends.
    Seconds since the start are None in a run in virtual time.
    """
    curves: dict[str, list[list[float | None]]] = {}
    examples = counted = 0
    per_step = None
    virtual_s = _virtual_seconds(events)
    for event in events:
        of_training = event.kind in ("epoch", "evaluation") and "path" not in event.data  # mode=evaluate writes a path
        if not of_training or event.step is None:
            continue
        prefix = "val_" if event.kind == "evaluation" else ""
        per_step = rows.examples_per_step(event.data) or per_step  # a resumed run may have another mode
        if per_step:
            examples += per_step * (event.step - counted)
            counted = event.step
        wall_s = None if virtual_s else event.wall_s
        so_far = examples if per_step else None
        for name, value in as_mapping(event.data.get("metrics")).items():
            if as_number(value) is None:
                continue
            curve = curves.setdefault(prefix + name, [[], [], [], [], []])
            point = (event.step, wall_s, float(value), so_far, virtual_s.get(event.step))
            for values, one in zip(curve, point):
                values.append(one)
    return curves


def _virtual_seconds(events: Sequence[Event]) -> dict[int, float]:
    """The virtual seconds at the end of each epoch, by step."""
    found: dict[int, float] = {}
    for event in events:
        time_s = as_number(as_mapping(event.data.get("virtual")).get("time_s"))
        if event.kind == "epoch" and event.step is not None and time_s is not None:
            found[event.step] = time_s
    return found


def _epoch(event: Event) -> list[Any]:
    """Number, end and length in seconds, and the mean milliseconds per step; None if they are not known.

    Of a run in virtual time, a step has none: those of its process are not those of workers.
    """
    rate = as_number(event.data.get("steps_per_s"))
    step_ms = round(1000 / rate, 4) if rate and "virtual" not in event.data else None
    return [event.data.get("epoch"), event.wall_s, as_number(event.data.get("seconds")), step_ms]


def _mark(event: Event) -> Values:
    values = {"step": event.step, "wall_s": event.wall_s, **event.data}
    names = ("step", "wall_s", "task", "cause", "action", "seconds")
    return {"kind": event.kind, **{name: values[name] for name in names if values.get(name) is not None}}


def _system(events: Sequence[Event]) -> dict[str, dict[str, list[float | None]]]:
    """By task: CPU, memory and bytes per second over time, at MOST_POINTS times at most."""
    by_task: dict[str, list[Event]] = {}
    for event in events:
        if event.kind == "system" and event.data.get("task"):
            by_task.setdefault(str(event.data["task"]), []).append(event)
    return {
        task: _over_time(measured[:: math.ceil(len(measured) / _MOST_POINTS)]) for task, measured in by_task.items()
    }


def _over_time(measured: Sequence[Event]) -> dict[str, list[float | None]]:
    values: dict[str, list[float | None]] = {"at_s": [round(event.wall_s, 1) for event in measured]}
    for name in ("cpu_percent", "memory_bytes"):
        values[name] = [as_number(event.data.get(name)) for event in measured]
    for name, total in (("received_per_s", "received_bytes"), ("sent_per_s", "sent_bytes")):
        values[name] = [None, *(_rate(*pair, total) for pair in itertools.pairwise(measured))]
    return values


def _rate(before: Event, after: Event, total: str) -> float | None:
    """The growth per second of a count; None if it began anew, as after a restart of the task."""
    first = as_number(before.data.get(total))
    last = as_number(after.data.get(total))
    seconds = after.wall_s - before.wall_s
    if first is None or last is None or last < first or seconds <= 0:
        return None
    return round((last - first) / seconds, 1)


def _stages(run: Run) -> dict[str, float] | None:
    """Seconds of a step on a worker by stage; None if they were not measured."""
    stages = as_mapping(run.result.get("step_time"))
    return {key.removesuffix("_s"): each for key, each in stages.items() if key.endswith("_s")} or None


def _staleness(run: Run) -> list[list[float]] | None:
    """Pairs of a staleness and the share of updates that are as stale or less; None if it was not measured."""
    try:
        counts = choices.staleness_histogram(as_mapping(run.result.get("staleness")))
    except (KeyError, TypeError, ValueError):  # without a measurement, or of another version of psrun
        return None
    updates = sum(counts.values())
    return [[each, so_far / updates] for each, so_far in zip(counts, itertools.accumulate(counts.values()))]


def _bytes(run: Run) -> dict[str, int]:
    """The bytes of model and optimizer on each task."""
    sizes = Counter[str]()
    for shard in as_mappings(placement_of(run.result, run.path)):
        size = as_number(shard.get("bytes"))
        if size is not None and shard.get("kind") in ("model", "optimizer", None):
            sizes[str(shard.get("task"))] += int(size)
    return dict(sorted(sizes.items()))
