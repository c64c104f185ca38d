"""How runs are ranked: by which metric, by which value of it, and whether they were evaluated on the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psrun.files import as_mapping, as_number, load_mapping
from psrun.results.run_folder import SEARCH_STATES
from psrun.results.run_state import GONE, LEVELS
from psrun.runs.report import recorded, rows
from psrun.runs.report.rows import Row
from psrun.runs.report.runs import Run
from psrun.runs.report.spread import Spread
from psrun.runs.sweeps import sweep

NUMBER = "number of evaluation examples"
_SHOWN = 3  # values of a key, and keys, that a sentence names


@dataclass(frozen=True)
class Ranking:
    """How runs are ranked.

    Attributes:
      metric: its column; with the name of a metric after `rows.BEST` it is the value at the best checkpoint of each
        run. None if no run has the metric.
      mode: 'min' or 'max'.
      differs: how the rows differ that runs are evaluated on; empty if they are the same, as far as that is recorded.
    """

    metric: str | None
    mode: str
    differs: str = ""

    def first(self, names: Sequence[str]) -> list[str]:
        """`names`, the ranking metric first."""
        return sorted(names, key=lambda name: name != self.metric)

    def ordered(self, records: Sequence[Row]) -> list[Row]:
        """The rows of runs, the best one first, if one order is right for all of them.

        Runs that a search ended early come after the others; the last are those that failed or have no value.
        """
        if self.metric is None or self.differs:
            return list(records)
        return sorted(records, key=self._rank)

    def _rank(self, record: Row) -> tuple[int, float]:
        value = record.get(str(self.metric))
        if isinstance(value, Spread):
            value = value.mean
        number = as_number(value)
        status = record["status"]
        if number is None or status in ("failed", GONE):
            return 2, 0.0
        group = 1 if status in SEARCH_STATES else 0
        return group, -number if self.mode == "max" else number


def of_runs(runs: Sequence[Run]) -> Ranking:
    """The ranking of `runs`: the metric and mode of the first of their sweeps that names a metric which a run has.

    Without one, it is the metric by which all of them compare their checkpoints, else val_loss or loss.
    """
    metric, mode = _metric_of(runs)
    measured = [run for run in runs if rows.metrics(run).get(str(metric)) is not None]
    if sweep.common_best(sweep.best_of(run.result) for run in measured) == (metric, mode):
        metric = f"{rows.BEST}{metric}"
    return Ranking(metric, mode, _differs(runs))


def _metric_of(runs: Sequence[Run]) -> tuple[str | None, str]:
    names = set(rows.metric_names(runs))
    for folder in dict.fromkeys(parent for run in runs for parent in run.path.parents[:LEVELS]):
        record, problem = load_mapping(folder / sweep.RECORD)
        metric = record.get("metric")
        if not problem and isinstance(metric, str) and metric in names:
            mode = record.get("mode")
            return metric, str(mode) if mode in ("min", "max") else sweep.mode_of(metric)
    measured = [run for run in runs if rows.metrics(run)]
    compared = sweep.common_best(sweep.best_of(run.result) for run in measured)
    if compared is not None:
        return compared
    default = sweep.default_metric(names)
    return default, sweep.mode_of(default or "")


def held_out(run: Run) -> dict[str, str]:
    """What tells the rows that a run is evaluated on from others, by name; without what the run did not record."""
    facts = as_mapping(run.result.get("data"))
    known: dict[str, Any] = {"data": rows.choices(run.config).get("data"), "data.label": run.config.get("data.label")}
    split = as_mapping(facts.get("split"))
    spec = as_mapping(split.get("spec"))
    if spec.get("by") != "none":
        known |= {f"data.split.{name}": value for name, value in spec.items()}
        known["since"] = split.get("since")
    known["files"] = _files(facts)
    known[NUMBER] = facts.get("num_eval_examples")
    return {name: rows.shown(value) for name, value in known.items() if value is not None}


def _files(facts: Mapping[str, Any]) -> list[Any] | None:
    """What identifies the files with the rows to evaluate on; None if that is not known."""
    hashes = [*as_mapping(facts.get("hashes")).values()]
    if not hashes:
        return None
    num_eval_files = as_number(facts.get("num_eval_files")) or 0
    of_evaluation = hashes[-int(num_eval_files) :]  # all of them if the rows are held out of the training files
    return sorted(str(recorded.file_identity(as_mapping(each))) for each in of_evaluation)


def _differs(runs: Sequence[Run]) -> str:
    """How the rows differ that the runs with metrics are evaluated on; empty if they do not."""
    values: dict[str, dict[str, None]] = {}
    for run in runs:
        if not any(name.startswith("val_") for name in rows.metrics(run)):
            continue
        for name, value in held_out(run).items():
            values.setdefault(name, {})[value] = None
    differing = [name for name, different in values.items() if len(different) > 1]
    if len(differing) > 1 and NUMBER in differing:  # it follows from the others
        differing.remove(NUMBER)
    return ", ".join(_part(name, list(values[name])) for name in differing[:_SHOWN])


def _part(name: str, values: Sequence[str]) -> str:
    """A key, with its values unless these are long."""
    shown = " and ".join(values)
    if len(values) > _SHOWN or len(shown) > 40:
        return name
    return f"{name} {shown}"
