"""Metrics and the configuration of a run in MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from psrun.config.choices import MLflow
from psrun.errors import ConfigError, Problem
from psrun.results import staleness
from psrun.results.events import Event, Progress
from psrun.results.run_folder import RunFolder

_LONGEST_VALUE = 500  # characters; every store accepts parameters of this length
_MOST_AT_ONCE = 100  # parameters
_STATUS = {"stopping": "KILLED", "end": "FINISHED"}


class MLflowSink:
    """Creates a run in MLflow with its parameters, and the metrics and the staleness of its epochs and evaluations.

    The first error of MLflow prints a warning and disables tracking; training continues.

    Args:
      values: of the configuration, by dotted key; None if another task creates the run, and this one only adds to it.
      warn: prints a warning.

    Raises:
      ConfigError: mlflow is not installed.
    """

    def __init__(
        self, chosen: MLflow, folder: RunFolder, values: Mapping[str, Any] | None, warn: Callable[[str], None]
    ) -> None:
        if "://" not in chosen.tracking_uri:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # the user chose a folder
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # each retry delays the training
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        try:
            from mlflow import entities, tracking
        except ImportError as error:
            message = "'mlflow' requires MLflow: pip install 'psrun[mlflow]', or choose tensorboard"
            raise ConfigError([Problem("tracker", message)]) from error
        self._chosen, self._folder, self._values, self._warn = chosen, folder, values, warn
        self._tracking, self._metric, self._parameter = tracking, entities.Metric, entities.Param
        self._client: Any = None
        self._run_id: str | None = None
        self._status = "FAILED"  # until another status is set
        self._gave_up = False

    def event(self, event: Event) -> None:
        if event.kind == "start":
            self._try(self._begin)
        elif event.kind == "planned" and self._values is not None:
            self._try(lambda: self._add_parameters(event.data))
        elif event.kind == "epoch":
            speed = {name: event.data[name] for name in ("steps_per_s", "examples_per_s")}
            self._try(lambda: self._log(event, {**event.data["metrics"], **speed}))
        elif event.kind == "evaluation":
            metrics = {f"val_{name}": value for name, value in event.data["metrics"].items()}
            self._try(lambda: self._log(event, metrics))
        elif event.kind == "staleness":
            values = {f"staleness_{name}": value for name, value in staleness.brief(event.data).items()}
            self._try(lambda: self._log(event, values))
        self._status = _STATUS.get(event.kind, self._status)

    def progress(self, progress: Progress) -> None:
        """Does nothing: only the results of complete epochs are recorded."""

    def close(self) -> None:
        if self._run_id is not None and self._values is not None:
            self._try(lambda: self._client.set_terminated(self._run_id, self._status))

    def _try(self, work: Callable[[], None]) -> None:
        if self._gave_up:
            return
        try:
            work()
        except Exception as error:  # of MLflow, its store or the network: none of them may end the training
            self._gave_up = True
            self._warn(f"MLflow at {self._chosen.tracking_uri} failed; the run continues without tracking: {error}")

    def _begin(self) -> None:
        self._client = self._tracking.MlflowClient(tracking_uri=self._chosen.tracking_uri)
        record = self._folder.stored().get("tracker") or {}
        self._run_id = record["run_id"] if record.get("tracking_uri") == self._chosen.tracking_uri else self._filed()
        if self._values is None:
            return
        self._client.update_run(self._run_id, status="RUNNING")
        self._add_parameters(self._values)

    def _add_parameters(self, values: Mapping[str, Any]) -> None:
        there = self._client.get_run(self._run_id).data.params  # parameters cannot be changed
        new = [self._parameter(key, str(value)[:_LONGEST_VALUE]) for key, value in values.items() if key not in there]
        for first in range(0, len(new), _MOST_AT_ONCE):
            self._client.log_batch(self._run_id, params=new[first : first + _MOST_AT_ONCE])

    def _filed(self) -> str:
        """Creates a run and records it in the run folder."""
        existing = self._client.get_experiment_by_name(self._chosen.experiment)
        experiment = existing.experiment_id if existing else self._client.create_experiment(self._chosen.experiment)
        tags = {"run_folder": str(self._folder.path)}
        run_id = self._client.create_run(experiment, run_name=self._folder.path.name, tags=tags).info.run_id
        filed = {"kind": "mlflow", "tracking_uri": self._chosen.tracking_uri, "run_id": run_id}
        self._folder.record("tracker", **filed)
        return run_id

    def _log(self, event: Event, values: Mapping[str, float | None]) -> None:
        """Records the values that are not undefined."""
        if self._run_id is None:
            self._begin()
        now_ms = int(time.time() * 1000)
        defined = {name: float(value) for name, value in values.items() if value is not None}
        metrics = [self._metric(name, value, now_ms, event.step or 0) for name, value in defined.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
