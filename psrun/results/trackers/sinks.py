"""Selects the experiment tracker: TensorBoard, MLflow, or none."""

from __future__ import annotations

from collections.abc import Callable

from psrun.config import choices, parse
from psrun.config.run_config import FROM_DATA, RunConfig
from psrun.config.schema import AUTO
from psrun.results.events import Sink
from psrun.results.run_folder import RunFolder, flat
from psrun.results.trackers.mlflow import MLflowSink
from psrun.results.trackers.tensorboard import Summaries


def tracker_sinks(run: RunConfig, folder: RunFolder, warn: Callable[[str], None], *, joins: bool = False) -> list[Sink]:
    """The trackers of a run. Numbers that follow from the data come with the event `planned`.

    Args:
      warn: prints a warning.
      joins: whether another task creates the run, and this one only adds to it.

    Raises:
      ConfigError: the package of the tracker is not installed.
    """
    recorded = flat({name: run.raw[name] for name in parse.RECORDED if name in run.raw})
    decided = {key: value for key, value in recorded.items() if key not in FROM_DATA or value != AUTO}
    values = None if joins else decided
    if folder.whole is not folder:  # a replica: the chief reports the run
        return []
    match run.tracker:
        case choices.TensorBoard():
            return [Summaries(folder.tensorboard, values)]
        case choices.MLflow():
            return [MLflowSink(run.tracker, folder, values, warn)]
        case _:
            return []
