"""The metric that ranks the runs of a report: that of their sweep, if it names one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psrun.files import load_mapping
from psrun.results.run_state import LEVELS
from psrun.runs.report import rows
from psrun.runs.report.runs import Run
from psrun.runs.sweeps import sweep


@dataclass(frozen=True)
class Ranking:
    """How runs are ranked.

    Attributes:
      metric: None if no run has the metric.
      mode: 'min' or 'max'.
    """

    metric: str | None
    mode: str

    def first(self, names: Sequence[str]) -> list[str]:
        """`names`, the ranking metric first."""
        return sorted(names, key=lambda name: name != self.metric)


def of_runs(runs: Sequence[Run]) -> Ranking:
    """The ranking of `runs`: the metric and mode of the first of their sweeps that names a metric which a run has.

    Without one, val_loss or loss ranks them, as in a sweep that names none.
    """
    names = set(rows.metric_names(runs))
    for folder in dict.fromkeys(parent for run in runs for parent in run.path.parents[:LEVELS]):
        record, problem = load_mapping(folder / sweep.RECORD)
        metric = record.get("metric")
        if not problem and isinstance(metric, str) and metric in names:
            mode = record.get("mode")
            return Ranking(metric, str(mode) if mode in ("min", "max") else sweep.mode_of(metric))
    default = sweep.default_metric(names)
    return Ranking(default, sweep.mode_of(default or ""))
