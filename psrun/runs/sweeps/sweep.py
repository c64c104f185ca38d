"""A sweep: its record in sweep.json, and what its processes tell each other.

One process writes the record, with what it reads from the folders of the jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psrun
from psrun import files, process
from psrun.config.groups import key_of, run_argument
from psrun.errors import CANNOT_GROW, ConfigError, Problem, SweepError
from psrun.results import run_state
from psrun.results.events import Progress
from psrun.results.run_folder import OVER, PAUSED, PRUNED, SEARCH_STATES, RunFolder, in_use, wrong_folder
from psrun.runs.states import STARTING, WAITING, state

RECORD = run_state.SWEEP
DEFAULT_METRICS = ("val_loss", "loss")  # that rank the jobs if none is named
SEARCH_JOURNAL = "search.journal"  # what a search has proposed
LOG = "console"  # the console output of a job
END, TERMINATE, KILL = "SIGINT", "SIGTERM", "SIGKILL"  # what jobs get that are to end
_HOLD_WITHIN_S = 1.0
_LOWER_IS_BETTER = ("loss", "error", "crossentropy", "mae", "mse", "mape", "msle", "_s")
_RECORDED = ("number", "overrides", "folder", "status", "metric", "wall_s", "exit_code", "error", "rungs")
RECORDED_ENDS = (*OVER, *SEARCH_STATES)


@dataclass(frozen=True)
class Job:
    """A job of a sweep, or a run in a folder without sweep.json. sweep.json has the attributes up to `error`.

    Attributes:
      number: None without sweep.json.
      folder: its run folder, relative to the sweep folder.
      status: one of `psrun.runs.states.STATES`.
      metric: the value that ranks it; None before it has completed.
      error: its first line.
      rungs: of a search with halving: the metric at each epoch after which it paused.
      doing: the phase that its chief reports, such as 'training'; else the status.
      differing: the overrides that not all jobs have.
      progress: of the training; None while nothing is known.
      metrics: the newest value of each.
      best: the evaluation of its best checkpoint, as `best_of` returns it.
      written_s: when anything of it was last written, as of `time.time`; 0 if nothing was.
    """

    number: int | None
    overrides: Sequence[str]
    folder: str
    status: str = WAITING
    metric: float | None = None
    wall_s: float | None = None
    exit_code: int | None = None
    error: str | None = None
    rungs: Mapping[str, float] = field(default_factory=dict)
    doing: str = WAITING
    differing: Sequence[str] = ()
    progress: Progress | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, Any] = field(default_factory=dict)
    written_s: float = 0.0

    @property
    def apart(self) -> str:
        """The overrides that not all jobs have, as text."""
        return " ".join(self.differing)

    @property
    def is_over(self) -> bool:
        return state(self.status).is_over

    @property
    def has_started(self) -> bool:
        return self.status not in (WAITING, STARTING)


@dataclass
class Sweep:
    """A sweep in its folder. Only the process that locks the folder changes and writes it; the jobs read it.

    Attributes:
      arguments: of its command line, in Hydra's grammar.
      search: the method by which jobs are proposed; None if all are known at the start.
      metric, mode: as in `psrun.config.run_config.SweepKeys`; without a metric, the mode is 'min'.
      max_parallel: the number of jobs that run at once.
      host: where it runs, and where `max_parallel` applies.
      process: that runs it, as of `process.this_process`; empty where it is not recorded.
      started_s: the time of the start, or of the last resume, as of `time.time`.
      status: running, completed, failed or interrupted.
    """

    path: Path
    arguments: list[str]
    search: str | None = None
    metric: str | None = None
    mode: str | None = None
    max_parallel: int = 1
    host: str = field(default_factory=socket.gethostname)
    started_s: float = field(default_factory=time.time)
    process: Mapping[str, Any] = field(default_factory=process.this_process)
    status: str = "running"
    jobs: dict[int, Job] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock, repr=False)

    @classmethod
    def read(cls, path: Path) -> Sweep:
        """The sweep in the folder `path`. Raises ConfigError if there is none that can be resumed."""
        record, problem = files.load_mapping(path / RECORD)
        if problem or "arguments" not in record:
            reason = problem or f"{RECORD} has no arguments"
            hint = ""
            if RunFolder(path).has_run:
                hint = f"; it holds a run: psrun resume {run_argument(files.from_here(path))}, without -m"
            elif not path.is_dir():
                hint = run_state.guess(path.name)
            raise ConfigError([Problem("resume", f"there is no sweep in {path} ({reason}){hint}")])
        return cls.from_record(path, record)

    @classmethod
    def from_record(cls, path: Path, record: Mapping[str, Any]) -> Sweep:
        """The sweep with this content of sweep.json, as far as it is known."""
        jobs = {}
        for entry in files.as_mappings(record.get("jobs")):
            if isinstance(entry.get("folder"), str) and isinstance(entry.get("number"), int):
                values = {name: entry[name] for name in _RECORDED if name in entry}
                jobs[entry["number"]] = Job(**{"overrides": [], **values})
        names = ("search", "metric", "mode", "max_parallel", "status")
        values = {name: record[name] for name in names if name in record}
        arguments = record.get("arguments") or []
        started_s = files.as_number(record.get("started_s")) or 0.0
        here = files.as_mapping(record.get("process"))
        host = record.get("host", "")
        return cls(path, arguments, host=host, started_s=started_s, process=here, jobs=jobs, **values)

    def begin(self, *, again: bool) -> None:
        """Locks the folder for this process, until the process ends.

        Args:
          again: whether to resume the sweep in the folder; otherwise the folder must hold none, or only plans, which
            are removed.

        Raises:
          ConfigError: another process has locked it, it holds a sweep already, or it cannot be written.
          SweepError: the disk is full, or that of a resumed sweep cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # A job that checks whether its sweep is alive locks the folder for a moment.
            if not files.hold(self.path, within_s=_HOLD_WITHIN_S):
                if again:
                    raise ConfigError([in_use(self.path, resumes=True)])
                message = f"{self.path} is in use by a running sweep; choose another folder"
                raise ConfigError([Problem("hydra.sweep.dir", message)])
            if not again and (self.path / RECORD).exists() and not self._removed_plans():
                resume = run_state.resume_command(self.path)
                message = f"{self.path} holds a sweep already; choose another folder, or continue it: {resume}"
                raise ConfigError([Problem("hydra.sweep.dir", message)])
            shutil.rmtree(self._shared, ignore_errors=True)
            self._shared.mkdir()
        except OSError as error:
            if again or error.errno in CANNOT_GROW:
                raise cannot_be_written(self.path, error) from error
            raise wrong_folder("hydra.sweep.dir", self.path, error) from error
        self.host = socket.gethostname()
        self.process = process.this_process()
        self.started_s = time.time()
        self.status = "running"
        self.write()

    def _removed_plans(self) -> bool:
        """Removes the sweep in the folder if it has only planned its jobs; returns whether it has.

        Raises:
          ConfigError: another process has locked the folder of a job, or it cannot be written.
        """
        record, _ = files.load_mapping(self.path / RECORD)
        before = Sweep.from_record(self.path, record)
        if not before.holds_plans:
            return False
        for job in before.jobs.values():
            before._remove_plan(job)
        (self.path / RECORD).unlink()
        return True

    def _remove_plan(self, job: Job) -> None:
        """Removes the plan of a job, unless another process trains it meanwhile. Raises ConfigError."""
        folder = self.folder(job)
        descriptor = None
        with contextlib.suppress(OSError):  # a file system without locks
            descriptor = files.lock(folder)
            if descriptor is None:
                raise ConfigError([in_use(folder, resumes=False)])
        try:
            run = RunFolder(folder)
            if not run.holds_plan:
                message = f"{folder} holds a run now; choose another folder"
                raise ConfigError([Problem("hydra.sweep.dir", message)])
            run.remove_plan()
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @property
    def holds_plans(self) -> bool:
        """Whether its jobs were only planned. A search may hold results beside its jobs."""
        if self.search is not None or not self.jobs:
            return False
        return all(RunFolder(self.folder(job)).holds_plan for job in self.jobs.values())

    def record(self) -> dict[str, Any]:
        """The content of sweep.json."""
        with self._lock:
            record = {name: value for name, value in vars(self).items() if name not in ("path", "jobs", "_lock")}
            jobs = [{name: getattr(job, name) for name in _RECORDED} for _, job in sorted(self.jobs.items())]
            return record | {"psrun": psrun.__version__, "jobs": jobs}

    def write(self) -> None:
        """Writes sweep.json. Raises SweepError if that is not possible."""
        with self._lock:
            try:
                files.write_atomic(self.path / RECORD, json.dumps(self.record(), indent=2) + "\n")
            except OSError as error:
                raise cannot_be_written(self.path, error) from error

    def plan(self, jobs: Mapping[int, Job]) -> None:
        """Adds jobs to run, including earlier ones that are not completed. Raises SweepError."""
        with self._lock:
            for number, job in jobs.items():
                before = self.jobs.get(number)
                if before is None:
                    self.jobs[number] = job
                elif before.status != PAUSED and not self.is_done(self.path / job.folder):
                    self.jobs[number] = replace(job, rungs=before.rungs)
        self.write()

    def update(self, jobs: Sequence[Job]) -> list[Job]:
        """Takes over the state of its jobs, as a SweepReader has read it; those whose status has changed."""
        changed = []
        with self._lock:
            for job in jobs:
                if job.number is None or job.status == self.jobs[job.number].status:
                    continue
                metric = self.measured(job.metrics, job.best) if job.status == "completed" else None
                now = replace(job, metric=metric, rungs=self.jobs[job.number].rungs)
                if job.status not in RECORDED_ENDS:  # the run may still change them
                    now = replace(now, wall_s=None, exit_code=None, error=None)
                self.jobs[job.number] = now
                changed.append(job)
        return changed

    def rank_by(self, metric: str | None, mode: str | None) -> None:
        """Ranks the jobs, also those that are completed, by another metric."""
        if (metric, mode) == (self.metric, self.mode):
            return
        self.metric = metric
        self.mode = mode
        for number, job in self.jobs.items():
            result = RunFolder(self.folder(job)).stored()
            metrics = result.get("metrics") or {}
            value = self.measured(metrics, best_of(result)) if job.status == "completed" else None
            self.jobs[number] = replace(job, metric=value)

    def measured(self, metrics: Mapping[str, Any], best: Mapping[str, Any]) -> float | None:
        """The value that ranks a job with these metrics and this `best_of`; None if it has none."""
        ranks = ranking_metric(metrics, best, self.metric, self.mode)
        if ranks is None:
            return None
        return ranking_value(metrics, best, *ranks)

    def reached(self, number: int, epoch: int, value: float) -> None:
        """Records the metric of a job at the epoch after which it paused. Raises SweepError."""
        with self._lock:
            job = self.jobs[number]
            self.jobs[number] = replace(job, rungs={**job.rungs, str(epoch): value})
        self.write()

    def prune(self) -> None:
        """Records that no paused job goes on, in its folder if there still is one. Raises SweepError."""
        with self._lock:
            for number, job in self.jobs.items():
                run = RunFolder(self.folder(job))
                if run.is_paused:
                    run.emit("search", **{**run.stored()["search"], "state": PRUNED})
                elif job.status == PAUSED and self.was_removed(job):
                    self.jobs[number] = replace(job, status=PRUNED, doing=PRUNED)
        self.write()

    def was_removed(self, job: Job) -> bool:
        """Whether a search has paused or pruned the job and its folder was removed: its status holds nevertheless."""
        return job.status in SEARCH_STATES and not os.path.exists(self.folder(job))

    def folder(self, job: Job) -> Path:
        return self.path / job.folder

    def is_done(self, folder: Path) -> bool:
        """Whether the job in `folder` must not run again."""
        return RunFolder(folder).stored().get("status") in final_statuses(self.search)

    def value(self, folder: Path) -> float | None:
        """The value that ranks the job in `folder`; None if it has neither completed nor paused."""
        run = RunFolder(folder)
        result = run.stored()
        if result.get("status") != "completed" and not run.is_paused:
            return None
        return self.measured(result.get("metrics") or {}, best_of(result))

    def discard(self) -> None:
        """Removes the record of a sweep of which nothing has run."""
        shutil.rmtree(self._shared, ignore_errors=True)
        for name in (RECORD, "multirun.yaml", SEARCH_JOURNAL):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files do not belong to the sweep
            self.path.rmdir()

    def end(self, status: str) -> None:
        """Records the end of the sweep. Raises SweepError if that is not possible."""
        self.status = status
        for number, job in self.jobs.items():
            if job.status == STARTING:  # it was ended before it recorded anything
                self.jobs[number] = replace(job, status=WAITING, doing=WAITING)
        shutil.rmtree(self._shared, ignore_errors=True)
        self.write()

    # -- messages between its processes

    @property
    def _shared(self) -> Path:
        return self.path / ".sweep"

    def request_end(self, how: str) -> None:
        """Asks all jobs, on any host, to shut down in order (END, TERMINATE) or immediately (KILL)."""
        with contextlib.suppress(OSError):  # a full disk: the jobs end with the process that runs them
            files.write_atomic(self._shared / "stop", how)

    def end_request(self) -> str | None:
        """The requested way to end, a name of a signal; None without a request."""
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

    def take_slot(self) -> int | None:
        """A descriptor that locks one of the slots for running jobs; None if all are taken."""
        for slot in self._slots():
            slot.touch()
            try:
                descriptor = files.lock(slot)
            except OSError:  # a file system without locks: only the launcher limits the jobs
                return os.open(slot, os.O_RDONLY)
            if descriptor is not None:
                return descriptor
        return None

    def has_running_jobs(self) -> bool:
        """Whether jobs run, or may run on a file system without locks."""
        try:
            return any(slot.exists() and files.is_locked(slot) for slot in self._slots())
        except OSError:
            return True

    def _slots(self) -> list[Path]:
        return [self._shared / f"place-{index}" for index in range(self.max_parallel)]


def default_metric(names: Iterable[str]) -> str | None:
    """The one of these metrics that ranks runs if none is named; None if there is none."""
    known = set(names)
    return next((name for name in DEFAULT_METRICS if name in known), None)


def best_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluation of the best checkpoint in a run.json: `step`, `metric`, `mode`, `value`; empty without one."""
    best = files.as_mapping(result.get("best_checkpoint"))
    if files.as_number(best.get("value")) is None or not isinstance(best.get("metric"), str):
        return {}
    return dict(best)


def ranking_metric(
    metrics: Mapping[str, Any], best: Mapping[str, Any], metric: str | None, mode: str | None
) -> tuple[str, str | None] | None:
    """The metric that ranks a run, and which of its values are better; None if the run has none.

    Args:
      metrics: the newest value of each; best: as `best_of` returns it.
      metric, mode: of the sweep, if it names them.
    """
    if metric is not None:
        return metric, mode
    if best:
        return best["metric"], best.get("mode")
    name = default_metric(metrics)
    if name is None:
        return None
    return name, mode_of(name)


def ranking_value(metrics: Mapping[str, Any], best: Mapping[str, Any], metric: str, mode: str | None) -> float | None:
    """The value of a metric that ranks a run; None if it has none.

    It is the value of the best checkpoint if checkpoints are compared by this metric, else the newest one.

    Args:
      metrics: the newest value of each; best: as `best_of` returns it.
    """
    if best and (best["metric"], best.get("mode")) == (metric, mode):
        return float(best["value"])
    value = metrics.get(metric)
    if value is None:
        return None
    return float(value)


def common_best(found: Iterable[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The metric and the mode by which all runs compare their checkpoints; None if not all do, or by several.

    Args:
      found: the `best_of` of each run.
    """
    compared = {(best.get("metric"), best.get("mode")) for best in found}
    if len(compared) != 1:
        return None
    metric, mode = compared.pop()
    if metric is None or mode is None:
        return None
    return metric, mode


def mode_of(metric: str) -> str:
    """'min' or 'max', by the name of a metric."""
    return "min" if metric.endswith(_LOWER_IS_BETTER) else "max"


def final_statuses(search: str | None) -> tuple[str, ...]:
    """The statuses after which a job does not run again: in a search, a failed job would fail once more."""
    return ("completed", "failed") if search else ("completed",)


def is_own_key(key: str) -> bool:
    """Whether a key says how the sweep runs its jobs, and not what they train."""
    return key.partition(".")[0] == "sweep"


def distinguishing(overrides: Sequence[Sequence[str]]) -> list[list[str]]:
    """Of the overrides of each job those that not all jobs have; without those of the sweep itself.

    A job that began after the sweep was resumed may have another `sweep.max_parallel`.
    """
    overrides = [[each for each in one if not is_own_key(key_of(each))] for one in overrides]
    sets = [set(each) for each in overrides if each]
    common = set.intersection(*sets) if len(sets) > 1 else set[str]()
    return [[each for each in one if each not in common] for one in overrides]


def cannot_be_written(folder: Path, error: OSError) -> SweepError:
    """The error to raise if a file in a sweep's folder cannot be written."""
    return SweepError(f"the sweep folder {folder} cannot be written to: {error.strerror or error}")
