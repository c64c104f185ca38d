"""The state of a sweep's jobs, as their folders show it, for the sweep itself and for the commands on runs."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from psrun import files
from psrun.config.groups import key_of
from psrun.engines.slurm import sweep_jobs
from psrun.errors import PsrunError
from psrun.results import run_state
from psrun.results.run_folder import OVER, SEARCH_STATES, RunFolder
from psrun.results.run_state import GONE
from psrun.runs.states import STARTING, WAITING
from psrun.runs.sweeps.sweep import (
    LOG,
    RECORD,
    RECORDED_ENDS,
    Job,
    Sweep,
    best_of,
    common_best,
    default_metric,
    distinguishing,
    final_statuses,
    is_own_key,
    mode_of,
    ranking_value,
)

_SEEN_WITHIN_S = 60.0  # on a shared disk
LOST = "its Slurm job has left the queue"
BETWEEN_JOBS_S = 15.0  # without sweep.json, another job may start within this time
_WHOLE, _ENDED_EARLY, _UNRANKED = range(3)  # jobs in the order of their ranks


@dataclass(frozen=True)
class SweepState:
    """The state of all jobs at one moment.

    Attributes:
      jobs: in the order of their numbers; without sweep.json in that of their names.
      status: of the sweep, as in sweep.json, or gone; None without sweep.json.
      metric: the metric that ranks the jobs; None while there is none.
      mode: 'min' or 'max'.
    """

    jobs: Sequence[Job]
    status: str | None
    metric: str | None
    mode: str

    @property
    def best(self) -> Job | None:
        """The best job that has not failed; it may still run. None if no job has the metric."""
        first = next(iter(self.ranked), None)
        if first is None or self._rank(first)[0] == _UNRANKED:
            return None
        return first

    @property
    def ranked(self) -> list[Job]:
        """All jobs, the best one first.

        Paused and pruned jobs were trained for fewer epochs, and come after the others. Jobs that failed, or do not
        have the metric, are the last.
        """
        return sorted(self.jobs, key=self._rank)

    def _rank(self, job: Job) -> tuple[int, float]:
        value = self.value(job)
        if value is None or job.status in ("failed", GONE):
            return _UNRANKED, 0.0
        group = _ENDED_EARLY if job.status in SEARCH_STATES else _WHOLE
        return group, -value if self.mode == "max" else value

    def value(self, job: Job) -> float | None:
        """The value that ranks a job; None if it has none."""
        if self.metric is None:
            return None
        return ranking_value(job.metrics, job.best, self.metric, self.mode)

    @property
    def title(self) -> str:
        """What the values are that rank the jobs: 'val_auc', or 'best val_auc' of the checkpoints of each job."""
        name = self.metric or "metric"
        compared = (self.metric, self.mode)
        if any((job.best.get("metric"), job.best.get("mode")) == compared for job in self.jobs):
            return f"best {name}"
        return name

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

    def ranking(self, job: Job) -> dict[str, float]:
        """The metric that ranks the jobs, as far as the job has it; without one the first metric of the job."""
        if self.metric is None:
            return dict(list(job.metrics.items())[:1])
        value = self.value(job)
        if value is None:
            return {}
        return {self.metric: value}


def counted(counts: Mapping[str, int]) -> str:
    """The number of jobs by status in words: '2 completed, 1 waiting'; empty without a job."""
    return ", ".join(f"{number} {status}" for status, number in counts.items())


class SweepReader:
    """Reads the state of the jobs below `path`; finished jobs only once, unless they are resumed.

    Args:
      metric: the metric that ranks the jobs; None: that of the sweep, else val_loss or loss.
      mode: 'min' or 'max'; None: that of the sweep, else by the name of the metric.
      sweep: the sweep that this process runs; None: that in sweep.json, if there is one.
    """

    def __init__(
        self, path: Path, *, metric: str | None = None, mode: str | None = None, sweep: Sweep | None = None
    ) -> None:
        self._path = path
        self._metric = metric
        self._mode = mode
        self._sweep = sweep
        self._supervised = sweep is not None
        self._is_killed = False
        self._has_no_jobs = False
        self._known: dict[Path, tuple[float, Job]] = {}

    def look(self) -> SweepState:
        """The current state. Raises PsrunError if the folder, or everything in it, was removed."""
        if not self._supervised:
            self._sweep = self._read()
        self._is_killed = bool(self._sweep and not self._supervised and self._is_gone(self._sweep))
        self._has_no_jobs = self._is_killed and _jobs_have_ended(self._path)
        jobs = [self._job(path, job) for path, job in (self._recorded() or self._below()).items()]
        jobs = [replace(job, differing=differing) for job, differing in zip(jobs, self._differing(jobs))]
        status = self._sweep.status if self._sweep else None
        if self._is_killed:
            status = GONE
        return SweepState(jobs, status, *self._ranked_by(jobs))

    def _differing(self, jobs: Sequence[Job]) -> list[list[str]]:
        """What of its overrides tells each job from the others. The next one of a search may have other values."""
        if self._sweep is None or not self._sweep.search:
            return distinguishing([job.overrides for job in jobs])
        found = []
        for job in jobs:
            own = [each for each in job.overrides if each not in self._sweep.arguments]
            found.append([each for each in own if not is_own_key(key_of(each))])
        return found

    def _is_gone(self, sweep: Sweep) -> bool:
        """Whether the process of a sweep that is recorded as running was killed."""
        if sweep.status != "running" or sweep.host != socket.gethostname():  # a shared file system may keep locks local
            return False
        try:
            now = None if files.is_locked(self._path) else self._read()
        except OSError:  # a file system without locks
            return False
        return now is not None and now.status == "running"

    def _read(self) -> Sweep | None:
        record, problem = files.load_mapping(self._path / RECORD)
        if not os.path.isdir(self._path):
            raise PsrunError(f"the folder {self._path} was moved or deleted")
        if record:
            return Sweep.from_record(self._path, record)
        return None if problem.startswith("no ") else self._sweep

    def _below(self) -> dict[Path, Job]:
        """The runs in the folder; without sweep.json."""
        paths = sorted(run_state.below(self._path), key=lambda path: run_state.natural(str(path)))
        if not paths and self._sweep is None:
            raise PsrunError(f"no run is left in {self._path}: the runs were removed, or none has started")
        return {path: Job(None, (), run_state.printable(path.relative_to(self._path))) for path in paths}

    def _recorded(self) -> dict[Path, Job]:
        """The jobs of the sweep by their folders, also those that have not started, without their state."""
        jobs = sorted(self._sweep.jobs.items()) if self._sweep else []
        return {self._path / job.folder: Job(number, job.overrides, job.folder) for number, job in jobs}

    def _job(self, path: Path, job: Job) -> Job:
        """The state of a job, which is `job` before it starts."""
        stamp_s = run_state.result_changed_s(path)
        recorded = self._sweep.jobs.get(job.number) if self._sweep and job.number is not None else None
        if self._sweep and recorded and self._sweep.was_removed(recorded):
            return recorded
        known_s, previous = self._known.get(path, (0.0, job))
        if known_s == stamp_s and previous.status in RECORDED_ENDS and self._counts(previous.status, stamp_s):
            return previous
        is_planned = job.number is not None
        may_start = is_planned or time.time() - files.changed_s(path) < BETWEEN_JOBS_S
        if stamp_s or not may_start:
            now = run_state.look(path, supervised=self._supervised)
            if not self._supervised and has_lost_its_job(now, self._path):
                now = replace(now, gone=LOST)
            if self._counts(now.outcome, stamp_s):
                state = _of_run(now, job, previous.metrics)
                self._known[path] = (stamp_s, state)
                return state
        log_s = files.changed_s(RunFolder(path).log(LOG))
        sweep = self._sweep
        has_begun = log_s and is_planned and sweep and log_s >= sweep.started_s and sweep.status == "running"
        # One that was killed before it recorded anything has not started.
        status = STARTING if has_begun and not self._has_no_jobs else WAITING
        return replace(job, status=status, doing=status, written_s=files.changed_s(path))

    def _counts(self, status: str, stamp_s: float) -> bool:
        """Whether the sweep keeps this result: it repeats what did not complete before its start or last resume."""
        if self._sweep is None or status in (*final_statuses(self._sweep.search), *SEARCH_STATES):
            return True
        return stamp_s >= self._sweep.started_s

    def _ranked_by(self, jobs: Sequence[Job]) -> tuple[str | None, str]:
        return ranking_of(self._sweep, jobs, metric=self._metric, mode=self._mode)


def ranking_of(
    sweep: Sweep | None, jobs: Sequence[Job], *, metric: str | None = None, mode: str | None = None
) -> tuple[str | None, str]:
    """Metric and mode that rank the jobs, see `SweepReader`."""
    of_sweep = sweep.metric if sweep else None
    recorded = sweep.mode if sweep and (metric or of_sweep) == of_sweep else None
    metric = metric or of_sweep
    if metric is None:
        # A job that still runs has no checkpoint at first.
        compared = common_best(job.best for job in jobs if job.best or (job.is_over and job.metrics))
        if compared is not None:
            return compared[0], mode or compared[1]
        metric = default_metric(name for job in jobs for name in job.metrics)
    return metric, mode or recorded or mode_of(str(metric))


def has_lost_its_job(now: run_state.RunState, sweep: Path) -> bool:
    """Whether a job of a sweep was running on another host, where Slurm no longer has a job of the sweep."""
    if now.status != "running" or now.gone or now.quiet_s < _SEEN_WITHIN_S or run_state.is_here(now.result):
        return False
    return sweep_jobs.have_left(sweep)


def is_lost_from_sweep(now: run_state.RunState) -> bool:
    """Whether a run is a job of a sweep that Slurm no longer has; see `has_lost_its_job`."""
    for above in list(now.path.absolute().parents)[: run_state.LEVELS]:
        if os.path.exists(above / RECORD):
            return has_lost_its_job(now, above)
    return False


def _jobs_have_ended(sweep: Path) -> bool:
    """Whether the jobs of a sweep whose process was killed have ended; those that are not on Slurm end with it."""
    return sweep_jobs.have_left(sweep) or not sweep_jobs.were_submitted(sweep)


def _of_run(now: run_state.RunState, job: Job, metrics: Mapping[str, float]) -> Job:
    """The state of a started job. It keeps its earlier `metrics`, since a heartbeat does not have all of them."""
    status = "running" if now.status in OVER and not now.ended and not now.gone else now.outcome
    exit_code = now.result.get("exit_code")
    return replace(
        job,
        overrides=job.overrides or now.overrides,
        status=status,
        doing=now.doing if status == now.status else status,
        progress=now.progress,
        metrics={**metrics, **now.metrics},
        best=best_of(now.result),
        written_s=now.written_s or files.changed_s(now.path),
        wall_s=files.as_number(now.result.get("wall_s")),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        error=None if status in ("completed", "running") else now.error or None,
    )
