"""Experiment trackers, in addition to the run folder and the terminal: TensorBoard and MLflow."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from psrun.config import choices, parse
from psrun.config.run_config import FROM_DATA, RunConfig
from psrun.config.schema import AUTO
from psrun.errors import ConfigError, Problem
from psrun.results import staleness
from psrun.results.events import Event, Sink
from psrun.results.run_folder import RunFolder, flat
from psrun.tf_internals.summaries import write_session_start

_LONGEST_VALUE = 500  # characters; every store of MLflow accepts parameters of this length
_MOST_AT_ONCE = 100  # parameters
_STATUS = {"stopping": "KILLED", "end": "FINISHED"}


def tracker_sinks(run: RunConfig, folder: RunFolder, warn: Callable[[str], None], *, joins: bool = False) -> list[Sink]:
    """The trackers of a run. Numbers that follow from the data come with the event `planned`.

    Args:
      warn: prints a warning.
      joins: whether another task creates the run, and this one only adds to it.

    Raises:
      ConfigError: the package of the tracker is not installed.
    """
    if folder.whole is not folder:  # a replica: the chief reports the run
        return []
    recorded = flat({name: run.raw[name] for name in parse.RECORDED if name in run.raw})
    decided = {key: value for key, value in recorded.items() if key not in FROM_DATA or value != AUTO}
    values = None if joins else decided
    match run.tracker:
        case choices.TensorBoard():
            return [TensorBoardSink(folder.tensorboard, values)]
        case choices.MLflow():
            return [MLflowSink(run.tracker, folder, values, warn)]
        case _:
            return []


class TensorBoardSink(Sink):
    """Writes each epoch's metrics and staleness under train/, and each evaluation's under evaluation/.

    Steps may be trained again, from an older checkpoint: then the values of the earlier process are not drawn.

    Args:
      values: of the configuration, by dotted key, written as text and as hyperparameters; None for none.
    """

    def __init__(self, folder: Path, values: Mapping[str, Any] | None) -> None:
        self._folder = folder
        self._values = values
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._begun: set[str] = set()  # the names of writers that write metrics
        self._steps: dict[str, int] = {}  # the last one by kind of event
        self._restored: int | None = None

    def event(self, event: Event) -> None:
        if event.kind == "planned" and self._values is not None:
            self._values = {**self._values, **event.data}
        if event.kind == "placement" and self._values is not None:  # TensorFlow must not run anything before
            self._describe(self._values)
        if event.kind == "restored":
            self._restored = event.step
        name = {"epoch": "train", "evaluation": "evaluation", "staleness": "train"}.get(event.kind)
        if name is None:
            return
        scalars = dict(event.data.get("metrics", {}))
        if event.kind == "staleness":
            scalars = {f"staleness/{name}": value for name, value in staleness.brief(event.data).items()}
        if "steps_per_s" in event.data:
            scalars["steps_per_s"] = event.data["steps_per_s"]
        step = event.step or 0
        with self._writing(name):
            self._forget_repeated(event.kind, step, name)
            for key, value in scalars.items():
                if value is not None:  # undefined
                    tf.summary.scalar(key, value, step=step)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _forget_repeated(self, kind: str, step: int, name: str) -> None:
        """Makes TensorBoard forget what an earlier training wrote for steps that this one does again."""
        if name not in self._begun:  # files of earlier processes may be there
            self._begun.add(name)
            write_session_start(step if self._restored is None else min(step, self._restored + 1))
        elif step <= self._steps.get(kind, -1):  # the evaluator goes on while the chief starts again
            write_session_start(step)
        self._steps[kind] = step

    def _describe(self, values: Mapping[str, Any]) -> None:
        table = "".join(f"| {key} | {value} |\n" for key, value in values.items())
        plain = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in values.items()}
        with self._writing("."):
            tf.summary.text("configuration", f"| key | value |\n| --- | --- |\n{table}", step=0)
            hparams.hparams(plain)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._folder / name))
        # The writer belongs to this process' CPU: without the device TensorFlow may place its ops on a server.
        with tf.device("/CPU:0"), self._writers[name].as_default():
            yield
        self._writers[name].flush()


class MLflowSink(Sink):
    """Creates a run in MLflow with its parameters, and the metrics and the staleness of its epochs and evaluations.

    The first error of MLflow prints a warning and disables tracking; training continues.

    Args:
      values: of the configuration, by dotted key; None if another task creates the run, and this one only adds to it.
      warn: prints a warning.

    Raises:
      ConfigError: mlflow is not installed.
    """

    def __init__(
        self, chosen: choices.MLflow, folder: RunFolder, values: Mapping[str, Any] | None, warn: Callable[[str], None]
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
        self._chosen = chosen
        self._folder = folder
        self._values = values
        self._warn = warn
        self._tracking = tracking
        self._entities = entities
        self._client: Any = None
        self._run_id: str | None = None
        self._status = "FAILED"  # until another status is set
        self._gave_up = False

    def event(self, event: Event) -> None:
        data = event.data
        if event.kind == "start":
            self._try(self._begin)
        elif event.kind == "planned" and self._values is not None:
            self._try(lambda: self._add_parameters(data))
        elif event.kind == "epoch":
            speed = {name: data[name] for name in ("steps_per_s", "examples_per_s")}
            self._try(lambda: self._log(event.step, {**data["metrics"], **speed}))
        elif event.kind == "evaluation":
            self._try(lambda: self._log(event.step, {f"val_{name}": value for name, value in data["metrics"].items()}))
        elif event.kind == "staleness":
            values = {f"staleness_{name}": value for name, value in staleness.brief(data).items()}
            self._try(lambda: self._log(event.step, values))
        self._status = _STATUS.get(event.kind, self._status)

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
        is_same = record.get("tracking_uri") == self._chosen.tracking_uri
        self._run_id = record["run_id"] if is_same else self._created()
        if self._values is not None:
            self._client.update_run(self._run_id, status="RUNNING")
            self._add_parameters(self._values)

    def _add_parameters(self, values: Mapping[str, Any]) -> None:
        there = self._client.get_run(self._run_id).data.params  # parameters cannot be changed
        parameter = self._entities.Param
        new = [parameter(key, str(value)[:_LONGEST_VALUE]) for key, value in values.items() if key not in there]
        for first in range(0, len(new), _MOST_AT_ONCE):
            self._client.log_batch(self._run_id, params=new[first : first + _MOST_AT_ONCE])

    def _created(self) -> str:
        """Creates a run and records it in the run folder."""
        existing = self._client.get_experiment_by_name(self._chosen.experiment)
        experiment = existing.experiment_id if existing else self._client.create_experiment(self._chosen.experiment)
        tags = {"run_folder": str(self._folder.path)}
        run_id = self._client.create_run(experiment, run_name=self._folder.path.name, tags=tags).info.run_id
        self._folder.record("tracker", kind="mlflow", tracking_uri=self._chosen.tracking_uri, run_id=run_id)
        return run_id

    def _log(self, step: int | None, values: Mapping[str, float | None]) -> None:
        """Records the values that are not undefined."""
        if self._run_id is None:
            self._begin()
        now_ms = int(time.time() * 1000)
        # MLflow takes no @ in a name.
        defined = {name.replace("@", "_at_"): float(value) for name, value in values.items() if value is not None}
        metrics = [self._entities.Metric(name, value, now_ms, step or 0) for name, value in defined.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
