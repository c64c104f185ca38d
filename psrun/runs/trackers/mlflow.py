"""MLflow: a run with parameters, metrics and artifacts; the jobs of a sweep are children of one run."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from psrun import files
from psrun.checkpoint.storage import is_better
from psrun.errors import ConfigError, Problem
from psrun.results.events import Event, Sink
from psrun.results.run_folder import PAUSED
from psrun.results.tracking import STATUS, TrackedRun, artifacts, numbers
from psrun.runs.sweeps.sweep import best_of, mode_of, ranking_metric, ranking_value
from psrun.runs.trackers.choices import MLflow

_LONGEST_VALUE = 500  # characters; every store of MLflow accepts parameters of this length
_MOST_AT_ONCE = 100  # parameters
_IN_MLFLOW = {"completed": "FINISHED", "interrupted": "KILLED", "failed": "FAILED", PAUSED: "SCHEDULED"}
_PARENTS = "trackers.json"  # in the sweep folder
_LOCK = ".trackers.lock"
_LOCK_WITHIN_S = 60.0  # another job creates the parent, and perhaps the tables of a database


class MLflowSink(Sink):
    """Creates a run in MLflow with its parameters, and the metrics and the staleness of its epochs and evaluations.

    Raises:
      ConfigError: mlflow is not installed.
    """

    def __init__(self, chosen: MLflow, run: TrackedRun) -> None:
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
        self._run = run
        self._tracking = tracking
        self._entities = entities
        self._run_id: str | None = None
        self._parent: _Parent | None = None
        self._status = "failed"

    def event(self, event: Event) -> None:
        self._status = STATUS.get(event.kind, self._status)
        if event.kind == "start":
            self._begin()
        elif event.kind == "planned" and self._run.values is not None:
            self._add_parameters(event.data)
        elif values := numbers(event):
            self._log(event.step, values)

    def close(self) -> None:
        if self._run_id is None or self._run.values is None:
            return
        outcome = self._run.outcome(self._status)
        for name, content in artifacts(self._chosen.artifacts, self._run.folder, outcome):
            if isinstance(content, str):
                self._client.log_text(self._run_id, content, name)
            elif content.is_dir():
                self._client.log_artifacts(self._run_id, str(content), name)
            else:
                self._client.log_artifact(self._run_id, str(content), Path(name).parent.name or None)
        self._client.set_terminated(self._run_id, _IN_MLFLOW[outcome])
        if self._parent is not None:
            self._parent.ends(self._run.folder.stored() if outcome == "completed" else {})

    @functools.cached_property
    def _client(self) -> Any:
        """Makes the tables of an empty database."""
        return self._tracking.MlflowClient(tracking_uri=self._chosen.tracking_uri)

    def _begin(self) -> None:
        sweep = self._run.sweep
        if sweep is not None and self._run.values is not None:
            self._parent = _Parent(sweep, self._run, self._chosen)
            # First: with the lock of the sweep, as two jobs must not make the tables of one database at once.
            self._parent.begins(lambda: (self._client, self._experiment()))
        self._run_id = self._run.recorded(tracking_uri=self._chosen.tracking_uri) or self._created()
        if self._run.values is not None:
            self._client.update_run(self._run_id, status="RUNNING")
            self._add_parameters(self._run.values)

    def _experiment(self) -> str:
        """The id of the experiment, which is created if there is none."""
        name = self._chosen.experiment
        existing = self._client.get_experiment_by_name(name)
        return existing.experiment_id if existing else self._client.create_experiment(name)

    def _add_parameters(self, values: Mapping[str, Any]) -> None:
        there = self._client.get_run(self._run_id).data.params  # parameters cannot be changed
        parameter = self._entities.Param
        new = [parameter(key, str(value)[:_LONGEST_VALUE]) for key, value in values.items() if key not in there]
        for first in range(0, len(new), _MOST_AT_ONCE):
            self._client.log_batch(self._run_id, params=new[first : first + _MOST_AT_ONCE])

    def _created(self) -> str:
        """Creates a run and records it in the run folder."""
        path = self._run.folder.path
        tags = {"run_folder": str(path)}
        if self._parent is not None and self._parent.run_id is not None:
            tags["mlflow.parentRunId"] = self._parent.run_id
        run_id = self._client.create_run(self._experiment(), run_name=path.name, tags=tags).info.run_id
        self._run.record(kind="mlflow", tracking_uri=self._chosen.tracking_uri, run_id=run_id)
        return run_id

    def _log(self, step: int | None, values: Mapping[str, float]) -> None:
        if self._run_id is None:
            self._begin()
        now_ms = int(time.time() * 1000)
        named = {name.replace("@", "_at_"): value for name, value in values.items()}  # MLflow takes no @ in a name
        metrics = [self._entities.Metric(name, value, now_ms, step or 0) for name, value in named.items()]
        self._client.log_batch(self._run_id, metrics=metrics)


class _Parent:
    """The run in MLflow of a sweep, whose jobs are its children. Jobs that start at once create one.

    Its id, the jobs that run and the best value so far are in the sweep folder, which jobs lock to change them. It has
    the status RUNNING while a job runs; a job that is killed keeps it so until the job is resumed.

    Attributes:
      run_id: None without a lock, as on a file system that has none: then the jobs have no parent.
    """

    def __init__(self, sweep: Path, run: TrackedRun, chosen: MLflow) -> None:
        self._sweep = sweep
        self._run = run
        self._client: Any = None
        self._where = {"tracking_uri": chosen.tracking_uri, "experiment": chosen.experiment}
        self._job = str(run.folder.path.absolute().relative_to(sweep.absolute()))
        self.run_id: str | None = None

    def begins(self, connect: Callable[[], tuple[Any, str]]) -> None:
        """Call when the job begins; `connect` returns a client and the id of the experiment, which it may create."""
        with self._record() as record:
            if record is None:
                return
            self._client, experiment = connect()
            if {name: record.get(name) for name in self._where} != self._where:
                tags = {"run_folder": str(self._sweep)}
                created = self._client.create_run(experiment, run_name=self._sweep.name, tags=tags)
                record.clear()
                record.update(self._where, run_id=created.info.run_id, running=[])
            self.run_id = record["run_id"]
            record["running"] = sorted({*record["running"], self._job})
            self._client.update_run(self.run_id, status="RUNNING")

    def ends(self, result: Mapping[str, Any]) -> None:
        """Call when the job ends, with its run.json if it is complete: the parent gets the best of its jobs."""
        if self.run_id is None:
            return
        with self._record() as record:
            if record is None:
                return
            record["running"] = [job for job in record["running"] if job != self._job]
            self._compare(record, result)
            if not record["running"]:
                self._client.set_terminated(self.run_id, "FINISHED")

    def _compare(self, record: dict[str, Any], result: Mapping[str, Any]) -> None:
        metrics = files.as_mapping(result.get("metrics"))
        reached = best_of(result)
        ranks = ranking_metric(metrics, reached, self._run.ranking.metric, self._run.ranking.mode)
        if ranks is None:
            return
        name, mode = ranks
        value = files.as_number(ranking_value(metrics, reached, name, mode))
        if value is None:
            return
        if not is_better(value, record.get("best"), mode or mode_of(name)):
            return
        record["best"] = value
        self._client.log_metric(self.run_id, f"best_{name}".replace("@", "_at_"), value)
        self._client.set_tag(self.run_id, "best_job", self._job)

    @contextlib.contextmanager
    def _record(self) -> Iterator[dict[str, Any] | None]:
        """The record of this tracker, which is written at the end; None without the lock."""
        with files.alone(self._sweep / _LOCK, within_s=_LOCK_WITHIN_S) as held:
            if not held:
                yield None
                return
            path = self._sweep / _PARENTS
            trackers: dict[str, Any] = {}
            with contextlib.suppress(OSError, ValueError):
                trackers = json.loads(path.read_text(encoding="utf-8"))
            record = trackers.setdefault(self._run.name, {})
            yield record
            files.write_atomic(path, json.dumps(trackers, indent=2) + "\n")
