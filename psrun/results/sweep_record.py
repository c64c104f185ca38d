"""What is recorded of a sweep in its folder: sweep.json, and small files through which its processes see each other."""

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

from psrun import __version__, files
from psrun.errors import ConfigError, Problem, SweepError
from psrun.results.run_folder import RESULT, RunFolder

RECORD = "sweep.json"
DEFAULT_METRICS = ("val_loss", "loss")  # that rank the jobs if none is named
LOG = "console"  # the console output of a job
END, KILL = "end", "kill"
_HOLD_TRIES = 20


@dataclass(frozen=True)
class Job:
    """One job of a sweep.

    Attributes:
      folder: its run folder, seen from the sweep's.
      status: waiting, starting, running, completed, failed or interrupted.
      metric: what jobs are compared by, as far as there is a value.
      error: the first line of it.
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
    """A sweep in its folder. One process, the one that holds the folder, changes and writes it; its jobs read it.

    Attributes:
      arguments: what it was started with, in Hydra's grammar.
      search: whether jobs are proposed during the sweep instead of known at its start.
      metric, mode: as in `psrun.config.run_config.SweepKeys`; the direction of a metric that is not named is 'min'.
      max_parallel: how many jobs at once.
      host: where it runs; the limit holds there.
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
            held = json.loads((path / RECORD).read_text(encoding="utf-8"))
            del held["psrun"]
            jobs = {job["number"]: Job(**job) for job in held.pop("jobs")}
            return cls(path=path, jobs=jobs, **held)
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = "; it holds a run: use psrun resume=... without -m" if (path / RESULT).exists() else ""
            raise ConfigError([Problem("resume", f"there is no sweep in {path} ({error}){hint}")]) from error

    def begin(self, *, again: bool) -> None:
        """Makes the folder this process's, for as long as it lives.

        Args:
          again: whether to resume the sweep in the folder; otherwise the folder must hold none.

        Raises:
          ConfigError: another process has it, or there is a sweep already.
          SweepError: nothing can be written there.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._hold()
            if not again and (self.path / RECORD).exists():
                message = f"{self.path} holds a sweep already; choose another folder, or use psrun -m resume=..."
                raise ConfigError([Problem("hydra.sweep.dir", message)])
            shutil.rmtree(self._shared, ignore_errors=True)
            self._shared.mkdir()
        except OSError as error:
            raise SweepError(f"the sweep folder {self.path} cannot be written to: {error}") from error
        self.host, self.started_s, self.status = socket.gethostname(), time.time(), "running"
        self.write()

    def _hold(self) -> None:
        for _ in range(_HOLD_TRIES):  # a job that looks whether its sweep lives holds the folder for a moment
            try:
                if files.lock(self.path) is not None:
                    return
            except OSError:  # a file system without locks
                return
            time.sleep(0.05)
        raise ConfigError(
            [Problem("hydra.sweep.dir", f"{self.path} is in use by a running sweep; choose another folder")]
        )

    def record(self) -> dict[str, Any]:
        """What sweep.json holds."""
        own = ("path", "jobs", "_lock")
        with self._lock:
            record = {name: value for name, value in vars(self).items() if name not in own}
            return record | {"psrun": __version__, "jobs": [asdict(job) for _, job in sorted(self.jobs.items())]}

    def write(self) -> None:
        """Writes sweep.json. Raises SweepError if that is not possible."""
        with self._lock:
            try:
                files.write_atomic(self.path / RECORD, json.dumps(self.record(), indent=2) + "\n")
            except OSError as error:
                raise SweepError(f"the sweep folder {self.path} cannot be written to: {error}") from error

    def plan(self, jobs: list[Job]) -> None:
        """These are to be run next, also those that were run before and are not completed. Raises SweepError."""
        with self._lock:
            for job in jobs:
                before = self.jobs.get(job.number)
                self.jobs[job.number] = before if before and self.is_done(self.folder(job)) else job
        self.write()

    def now(self, number: int, **values: Any) -> Job:
        """What has become of a job."""
        with self._lock:
            self.jobs[number] = replace(self.jobs[number], **values)
            return self.jobs[number]

    def measured(self, metrics: Mapping[str, Any]) -> float | None:
        """The value that ranks a job with these metrics; None if it has none."""
        name = self.metric or next((name for name in DEFAULT_METRICS if name in metrics), None)
        value = metrics.get(name) if name else None
        return float(value) if value is not None else None

    def folder(self, job: Job) -> Path:
        return self.path / job.folder

    def is_done(self, folder: Path) -> bool:
        """Whether the job in `folder` is not to be run again: one of a search that failed would fail once more."""
        done = ("completed", "failed") if self.search else ("completed",)
        return RunFolder(folder).stored().get("status") in done

    # -- messages between its processes

    @property
    def _shared(self) -> Path:
        return self.path / ".sweep"

    def tell_to_end(self, how: str) -> None:
        """Asks all jobs, on any host, to shut down in order (END) or immediately (KILL)."""
        with contextlib.suppress(OSError):  # the disk is full: then they end with the process that runs them
            files.write_atomic(self._shared / "stop", how)

    def told_to_end(self) -> str | None:
        """How the jobs are to end; None while they are not."""
        try:
            return (self._shared / "stop").read_text(encoding="utf-8")
        except OSError:
            return None

    def is_alive(self) -> bool:
        """Whether the process that runs the sweep does; call from another one."""
        try:
            return files.is_locked(self.path)
        except FileNotFoundError:
            return False
        except OSError:  # a file system without locks
            return True

    def take_place(self) -> int | None:
        """A descriptor that holds one of the places of jobs under way; None where all are taken."""
        for place in self._places():
            with contextlib.suppress(FileExistsError):
                place.touch(exist_ok=False)
            held = files.lock(place)
            if held is not None:
                return held
        return None

    def is_any_under_way(self) -> bool:
        return any(place.exists() and files.is_locked(place) for place in self._places())

    def _places(self) -> list[Path]:
        return [self._shared / f"place-{index}" for index in range(self.max_parallel)]

    def discard(self) -> None:
        """There is no sweep here after all: nothing has been run."""
        shutil.rmtree(self._shared, ignore_errors=True)
        for name in (RECORD, "multirun.yaml"):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # what else there is is not the sweep's
            self.path.rmdir()

    def end(self, status: str) -> None:
        """The sweep is over. Raises SweepError where that cannot be recorded."""
        self.status = status
        shutil.rmtree(self._shared, ignore_errors=True)
        self.write()
