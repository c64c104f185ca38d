"""How a job of a sweep is, by its run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psrun.config.topology import CHIEF
from psrun.results import task_files
from psrun.results.events import Progress
from psrun.results.run_folder import OVER, RESULT, RunFolder
from psrun.results.sweep_record import LOG, Job, Sweep

WITHOUT_A_NAME = ("val_loss", "loss")


@dataclass(frozen=True)
class State:
    """How a job is.

    Attributes:
      status: as in `psrun.results.sweep_record.Job`.
      doing: the phase that its chief reports, such as 'training'; the status if it reports none.
      progress: of the training; None while nothing is known.
      metrics: the newest there are.
    """

    status: str = "waiting"
    doing: str = "waiting"
    progress: Progress | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    wall_s: float | None = None
    exit_code: int | None = None
    error: str | None = None


def look(folder: Path, *, since_s: float, final: bool = False) -> State:
    """How the job in `folder` is.

    Args:
      since_s: what was left behind before, as of `time.time`, by a job that is not completed, is to be done again.
      final: whether that is not so for failed ones.
    """
    result = RunFolder(folder).stored()
    status = result.get("status")
    if status in ("completed", *(["failed"] if final else [])) or _changed_since(folder / RESULT, since_s):
        beat = task_files.read(folder, CHIEF) if status == "running" else None
        progress = Progress(**beat.progress) if beat and beat.progress else None
        metrics = result.get("metrics") or (progress.metrics if progress else {})
        if progress and progress.loss is not None:
            metrics = {**metrics, "loss": progress.loss}
        error = ((result.get("error") or {}).get("message") or "").partition("\n")[0] or None
        doing = beat.state if beat else str(status)
        return State(str(status), doing, progress, metrics, result.get("wall_s"), result.get("exit_code"), error)
    starting = _changed_since(folder / "logs" / f"{LOG}.log", since_s)
    return State("starting", "starting") if starting else State()


def refresh(sweep: Sweep) -> dict[int, State]:
    """How all jobs are; those of the sweep are brought up to date."""
    found = {}
    for job in list(sweep.jobs.values()):
        now = look(sweep.folder(job), since_s=sweep.started_s, final=sweep.search)
        found[job.number] = now
        if now.status != job.status:
            outcome = (
                {"wall_s": now.wall_s, "exit_code": now.exit_code, "error": now.error} if now.status in OVER else {}
            )
            metric = measured(sweep, now.metrics) if now.status == "completed" else None
            sweep.now(job.number, status=now.status, metric=metric, **outcome)
    return found


def _changed_since(path: Path, since_s: float) -> bool:
    try:
        return path.stat().st_mtime >= since_s
    except OSError:
        return False


def metric_name(sweep: Sweep, metrics: Mapping[str, Any]) -> str | None:
    """The name of what jobs are compared by; None where there is nothing."""
    if sweep.metric is not None:
        return sweep.metric
    return next((name for name in WITHOUT_A_NAME if name in metrics), None)


def measured(sweep: Sweep, metrics: Mapping[str, Any]) -> float | None:
    """What the job with these metrics is compared by; None where it has none."""
    name = metric_name(sweep, metrics)
    value = metrics.get(name) if name else None
    return float(value) if value is not None else None


def best(sweep: Sweep) -> Job | None:
    """The best of the completed jobs; None where there is none."""
    done = [job for job in sweep.jobs.values() if job.status == "completed" and job.metric is not None]
    sign = -1 if sweep.mode == "max" else 1
    return min(done, key=lambda job: sign * (job.metric or 0.0), default=None)


def told_apart(jobs: Sequence[Job]) -> dict[int, str]:
    """The distinguishing overrides of each job: those that the jobs do not have in common."""
    common = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    return {job.number: " ".join(each for each in job.overrides if each not in common) for job in jobs}
