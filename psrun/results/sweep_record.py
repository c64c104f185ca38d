"""The record of a sweep in its folder: sweep.json, and the lock and request files that its processes share."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psrun
from psrun import files
from psrun.errors import ConfigError, Problem, SweepError
from psrun.results.run_folder import RESULT, RunFolder

RECORD = "sweep.json"
DEFAULT_METRICS = ("val_loss", "loss")  # that rank the jobs if none is named
LOG = "console"  # the console output of a job
END, KILL = "end", "kill"
_HOLD_WITHIN_S = 1.0


@dataclass(frozen=True)
class Job:
    """One job of a sweep.

    Attributes:
      folder: its run folder, relative to the sweep folder.
      status: waiting, starting, running, completed, failed or interrupted.
      metric: the value of the metric that ranks the jobs; None while there is none.
      error: its first line.
    """

    number: int
    overrides: list[str]
    folder: str
    status: str = "waiting"
    metric: float | None = None
    wall_s: float | None = None
    exit_code: int | None = None
    error: str | None = None


@dataclass
class Sweep:
    """A sweep in its folder. Only the process that locks the folder changes and writes it; the jobs read it.

    Attributes:
      arguments: of its command line, in Hydra's grammar.
      search: whether jobs are proposed during the sweep instead of known at its start.
      metric, mode: as in `psrun.config.run_config.SweepKeys`; without a metric, the mode is 'min'.
      max_parallel: the number of jobs that run at once.
      host: where it runs, and where `max_parallel` applies.
      started_s: the time of the start, or of the last resume, as of `time.time`.
      status: running, completed, failed or interrupted.
    """

    path: Path
    arguments: list[str]
    search: bool = False
    metric: str | None = None
    mode: str | None = None
    max_parallel: int = 1
    host: str = field(default_factory=socket.gethostname)
    started_s: float = field(default_factory=time.time)
    status: str = "running"
    jobs: dict[int, Job] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock, repr=False)

    @classmethod
    def read(cls, path: Path) -> Sweep:
        """The sweep in the folder `path`.

        Raises:
          ConfigError: there is none.
        """
        try:
            record = json.loads((path / RECORD).read_text(encoding="utf-8"))
            del record["psrun"]
            jobs = {job["number"]: Job(**job) for job in record.pop("jobs")}
            return cls(path=path, jobs=jobs, **record)
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = "; it holds a run: use psrun resume=... without -m" if (path / RESULT).exists() else ""
            raise ConfigError([Problem("resume", f"there is no sweep in {path} ({error}){hint}")]) from error

    def begin(self, *, again: bool) -> None:
        """Locks the folder for this process, until the process ends.

        Args:
          again: whether to resume the sweep in the folder; otherwise the folder must hold none.

        Raises:
          ConfigError: another process has locked it, or it holds a sweep already.
          SweepError: the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # A job that checks whether its sweep is alive locks the folder for a moment.
            if not files.hold(self.path, within_s=_HOLD_WITHIN_S):
                message = f"{self.path} is in use by a running sweep; choose another folder"
                raise ConfigError([Problem("hydra.sweep.dir", message)])
            if not again and (self.path / RECORD).exists():
                message = f"{self.path} holds a sweep already; choose another folder, or use psrun -m resume=..."
                raise ConfigError([Problem("hydra.sweep.dir", message)])
            shutil.rmtree(self._shared, ignore_errors=True)
            self._shared.mkdir()
        except OSError as error:
            raise cannot_be_written(self.path, error) from error
        self.host, self.started_s, self.status = socket.gethostname(), time.time(), "running"
        self.write()

    def record(self) -> dict[str, Any]:
        """The content of sweep.json."""
        own = ("path", "jobs", "_lock")
        with self._lock:
            record = {name: value for name, value in vars(self).items() if name not in own}
            return record | {"psrun": psrun.__version__, "jobs": [asdict(job) for _, job in sorted(self.jobs.items())]}

    def write(self) -> None:
        """Writes sweep.json. Raises SweepError if that is not possible."""
        with self._lock:
            try:
                files.write_atomic(self.path / RECORD, json.dumps(self.record(), indent=2) + "\n")
            except OSError as error:
                raise cannot_be_written(self.path, error) from error

    def plan(self, jobs: list[Job]) -> None:
        """Adds jobs to run, including earlier ones that are not completed. Raises SweepError."""
        with self._lock:
            for job in jobs:
                before = self.jobs.get(job.number)
                self.jobs[job.number] = before if before and self.is_done(self.folder(job)) else job
        self.write()

    def now(self, number: int, **values: Any) -> Job:
        """Updates a job."""
        with self._lock:
            self.jobs[number] = replace(self.jobs[number], **values)
            return self.jobs[number]

    def rank_by(self, metric: str | None, mode: str | None) -> None:
        """Ranks the jobs, also those that are completed, by another metric."""
        if (metric, mode) == (self.metric, self.mode):
            return
        self.metric = metric
        self.mode = mode
        for number, job in self.jobs.items():
            metrics = RunFolder(self.folder(job)).stored().get("metrics") or {}
            self.now(number, metric=self.measured(metrics) if job.status == "completed" else None)

    def measured(self, metrics: Mapping[str, Any]) -> float | None:
        """The value that ranks a job with these metrics; None if it has none."""
        name = self.metric or next((name for name in DEFAULT_METRICS if name in metrics), None)
        value = metrics.get(name) if name else None
        return float(value) if value is not None else None

    def folder(self, job: Job) -> Path:
        return self.path / job.folder

    def is_done(self, folder: Path) -> bool:
        """Whether the job in `folder` must not run again: in a search, a failed job would fail once more."""
        statuses = ("completed", "failed") if self.search else ("completed",)
        return RunFolder(folder).stored().get("status") in statuses

    # -- messages between its processes

    @property
    def _shared(self) -> Path:
        return self.path / ".sweep"

    def tell_to_end(self, how: str) -> None:
        """Asks all jobs, on any host, to shut down in order (END) or immediately (KILL)."""
        with contextlib.suppress(OSError):  # a full disk: the jobs end with the process that runs them
            files.write_atomic(self._shared / "stop", how)

    def told_to_end(self) -> str | None:
        """The requested way to end (END or KILL); None without a request."""
        try:
            return (self._shared / "stop").read_text(encoding="utf-8")
        except OSError:
            return None

    def is_alive(self) -> bool:
        """Whether the process that runs the sweep is alive; for other processes."""
        try:
            return files.is_locked(self.path)
        except FileNotFoundError:
            return False
        except OSError:  # a file system without locks
            return True

    def take_place(self) -> int | None:
        """A descriptor that locks one of the slots for running jobs; None if all are taken."""
        for place in self._places():
            place.touch()
            descriptor = files.lock(place)
            if descriptor is not None:
                return descriptor
        return None

    def is_any_under_way(self) -> bool:
        return any(place.exists() and files.is_locked(place) for place in self._places())

    def _places(self) -> list[Path]:
        return [self._shared / f"place-{index}" for index in range(self.max_parallel)]

    def discard(self) -> None:
        """Removes the record of a sweep of which nothing has run."""
        shutil.rmtree(self._shared, ignore_errors=True)
        for name in (RECORD, "multirun.yaml"):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files do not belong to the sweep
            self.path.rmdir()

    def end(self, status: str) -> None:
        """Records the end of the sweep. Raises SweepError if that is not possible."""
        self.status = status
        shutil.rmtree(self._shared, ignore_errors=True)
        self.write()


def cannot_be_written(folder: Path, error: OSError) -> SweepError:
    """The error to raise if a file in a sweep's folder cannot be written."""
    return SweepError(f"the sweep folder {folder} cannot be written to: {error.strerror or error}")
