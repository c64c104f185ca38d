"""The state of a sweep, or of any folder with runs, read from the folders of its jobs."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psrun import files
from psrun.errors import PsrunError
from psrun.results import folders, reading, run_state
from psrun.results.events import Progress
from psrun.results.run_folder import OVER, RESULT, RunFolder
from psrun.results.sweep_record import DEFAULT_METRICS, LOG, RECORD

BETWEEN_JOBS_S = 15.0  # without sweep.json, another job may start within this time
_LOWER_IS_BETTER = ("loss", "error", "crossentropy", "mae", "mse", "mape", "msle", "_s")  # page.js has the same list
_NOT_STARTED = ("waiting", "starting")
_NOT_RANKED = ("failed", "gone")


@dataclass(frozen=True)
class JobState:
    """The state of a job, or of a run in a folder.

    Attributes:
      name: its folder, as seen from the sweep's.
      number: as in sweep.json; None without one.
      status: waiting, starting, as in run.json, gone (it ended without recording a status), or unknown.
      doing: the phase that its chief reports, such as 'training'; else the status.
      apart: the overrides that not all jobs have.
      progress: of the training; None while nothing is known.
      metrics: the newest value of each.
      written_s: when anything of it was last written, as of `time.time`; 0 if nothing was.
      error: in one line.
    """

    name: str
    number: int | None = None
    overrides: Sequence[str] = ()
    status: str = "waiting"
    doing: str = "waiting"
    apart: str = ""
    progress: Progress | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    written_s: float = 0.0
    wall_s: float | None = None
    exit_code: int | None = None
    error: str = ""

    @property
    def is_over(self) -> bool:
        return self.status in (*OVER, "gone", run_state.UNKNOWN)

    @property
    def has_started(self) -> bool:
        return self.status not in _NOT_STARTED


@dataclass(frozen=True)
class SweepState:
    """The state of all jobs at one moment.

    Attributes:
      jobs: in the order of their numbers; without sweep.json in that of their names.
      status: of the sweep, as in sweep.json, or gone (its process was killed); None without sweep.json.
      metric: the metric that ranks the jobs; None while there is none.
      mode: 'min' or 'max'.
    """

    jobs: Sequence[JobState]
    status: str | None
    metric: str | None
    mode: str

    @property
    def best(self) -> JobState | None:
        """The best job that has not failed; it may still run. None if no job has the metric."""
        name, sign = self.metric or "", -1 if self.mode == "max" else 1
        ranked = [job for job in self.jobs if name in job.metrics and job.status not in _NOT_RANKED]
        return min(ranked, key=lambda job: sign * job.metrics[name], default=None)

    @property
    def counts(self) -> Counter[str]:
        """The number of jobs by status."""
        return Counter(job.status for job in self.jobs)

    @property
    def is_over(self) -> bool:
        """Whether no job runs and none will start."""
        if self.status not in (None, "running"):  # jobs that had not started when it ended never start
            return not any(job.has_started and not job.is_over for job in self.jobs)
        if not self.jobs:  # they are not known yet
            return self.status is None
        quiet_s = time.time() - max(job.written_s for job in self.jobs)
        return all(job.is_over for job in self.jobs) and quiet_s > BETWEEN_JOBS_S

    def ranking(self, job: JobState) -> dict[str, float]:
        """The metric that ranks the jobs, as far as the job has it; without one the first metric of the job."""
        if self.metric is None:
            return dict(list(job.metrics.items())[:1])
        return {name: value for name, value in job.metrics.items() if name == self.metric}


class SweepReader:
    """Reads the state of the jobs below `path`; finished jobs only once, unless they are resumed.

    Args:
      metric: the metric that ranks the jobs; None: that of the sweep, else val_loss or loss.
      mode: 'min' or 'max'; None: that of the sweep, else by the name of the metric.
      supervised: whether this process runs the jobs, see `run_state.look`.
    """

    def __init__(
        self, path: Path, *, metric: str | None = None, mode: str | None = None, supervised: bool = False
    ) -> None:
        self._path, self._metric, self._mode, self._supervised = path, metric, mode, supervised
        self._record: Mapping[str, Any] = {}
        self._known: dict[Path, tuple[float, JobState]] = {}

    def look(self, record: Mapping[str, Any] | None = None) -> SweepState:
        """The current state.

        Args:
          record: what sweep.json holds; None: read it.

        Raises:
          PsrunError: the folder, or everything in it, was removed.
        """
        self._record = self._read() if record is None else record
        recorded = self._recorded()
        paths = recorded or {path: JobState(folders.printable(path.relative_to(self._path))) for path in self._below()}
        jobs = [self._job(path, job) for path, job in paths.items()]
        apart = distinguishing([job.overrides for job in jobs])
        jobs = [replace(job, apart=text) for job, text in zip(jobs, apart)]
        status = self._record.get("status")
        if record is None and status == "running" and self._is_gone():
            status = "gone"
        return SweepState(jobs, None if status is None else str(status), *self._ranked_by(jobs))

    def _is_gone(self) -> bool:
        """Whether the process of a sweep that is recorded as running was killed."""
        if self._record.get("host") != socket.gethostname():  # a shared file system may keep locks local
            return False
        try:
            return not files.is_locked(self._path) and self._read().get("status") == "running"
        except OSError:  # a file system without locks
            return False

    def _read(self) -> Mapping[str, Any]:
        record, problem = reading.loaded(self._path / RECORD)
        if not self._path.is_dir():
            raise PsrunError(f"the folder {self._path} was moved or deleted")
        return record or ({} if problem.startswith("no ") else self._record)

    def _below(self) -> list[Path]:
        paths = list(folders.below(self._path))
        if not paths and not self._record:
            raise PsrunError(f"no run is left in {self._path}: the runs were removed, or none has started")
        return sorted(paths, key=lambda path: folders.natural(str(path)))

    def _recorded(self) -> dict[Path, JobState]:
        """The jobs in sweep.json by their folders, also those that have not started."""
        listed = self._record.get("jobs")
        jobs = [reading.mapping(job) for job in listed] if isinstance(listed, list) else []
        return {
            self._path / job["folder"]: JobState(
                job["folder"], job.get("number"), [str(each) for each in job.get("overrides") or []]
            )
            for job in jobs
            if isinstance(job.get("folder"), str)
        }

    def _job(self, path: Path, job: JobState) -> JobState:
        """The state of a job, of which `job` has the entry of sweep.json."""
        stamp_s = reading.changed_s(path / RESULT)
        known_s, previous = self._known.get(path, (0.0, job))
        if known_s == stamp_s and previous.status in OVER and self._counts(previous.status, stamp_s):
            return previous
        if stamp_s or not self._may_start(path, job):
            now = run_state.look(path, supervised=self._supervised)
            if self._counts(now.status, stamp_s):
                state = _of_run(now, job, previous.metrics)
                self._known[path] = (stamp_s, state)
                return state
        log_s = reading.changed_s(RunFolder(path).log(LOG))
        status = "starting" if job.number is not None and log_s and log_s >= self._started_s else "waiting"
        return replace(job, status=status, doing=status, written_s=reading.changed_s(path))

    def _may_start(self, path: Path, job: JobState) -> bool:
        """Whether a run may still start in a folder without one."""
        return job.number is not None or time.time() - reading.changed_s(path) < BETWEEN_JOBS_S

    def _counts(self, status: str, stamp_s: float) -> bool:
        """Whether the sweep keeps this result: it repeats what did not complete before its start or last resume."""
        statuses = ("completed", "failed") if self._record.get("search") else ("completed",)
        return status in statuses or stamp_s >= self._started_s

    @property
    def _started_s(self) -> float:
        return reading.number(self._record.get("started_s")) or 0.0

    def _ranked_by(self, jobs: Sequence[JobState]) -> tuple[str | None, str]:
        """Metric and mode."""
        record = self._record
        names = {name for job in jobs for name in job.metrics}
        metric = self._metric or record.get("metric") or next((name for name in DEFAULT_METRICS if name in names), None)
        recorded = record.get("mode") if metric == record.get("metric") else None
        return metric, self._mode or recorded or ("min" if str(metric).endswith(_LOWER_IS_BETTER) else "max")


def _of_run(now: run_state.RunState, job: JobState, metrics: Mapping[str, float]) -> JobState:
    """The state of a started job.

    Args:
      metrics: those that it had before; a heartbeat does not repeat all of them.
    """
    status = "gone" if now.gone else "running" if now.status in OVER and not now.ended else now.status
    exit_code = now.result.get("exit_code")
    return replace(
        job,
        overrides=job.overrides or now.overrides,
        status=status,
        doing=now.doing if status == now.status else status,
        progress=now.progress,
        metrics={**metrics, **now.metrics},
        written_s=now.written_s or reading.changed_s(now.path),
        wall_s=reading.number(now.result.get("wall_s")),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        error="" if status in ("completed", "running") else now.error,
    )


def distinguishing(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Of the overrides of each job those that not all jobs have, as text."""
    sets = [set(each) for each in overrides if each]
    common = set.intersection(*sets) if len(sets) > 1 else set[str]()
    return [" ".join(each for each in one if each not in common) for one in overrides]
