"""The live view of a sweep from outside: a line a job, and the best so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from psrun.errors import ConfigError, ExitCode
from psrun.results.console import numbers
from psrun.results.sweep_state import WITHOUT_A_NAME
from psrun.results.watch import jobs as jobs_
from psrun.results.watch.jobs import Job, Jobs
from psrun.results.watch.run import EVERY_S

_SMALL_IS_GOOD = ("loss", "error", "mae", "mse", "rmse", "_s")
_STYLES = {"completed": "green", "failed": "red", "gone": "red", "unknown": "red", "interrupted": "yellow"}
_SHARE = 10  # of the time that goes by, one part in so many is spent on looking
_ROOM = 6


class SweepView:
    """Follows the jobs in a folder to the end of all, on `console`.

    Args:
      metric: the metric that ranks the jobs; None: that of the sweep, else val_loss or loss.
      mode: 'min' or 'max'; None: that of the sweep, else by the name of the metric.
    """

    def __init__(self, path: Path, console: Console, *, metric: str | None, mode: str | None) -> None:
        self._path, self._console, self._metric, self._mode = path, console, metric, mode
        self._jobs = Jobs(path)
        self._states: dict[str, str] = {}
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def follow(self) -> ExitCode:
        """Shows the jobs until all have ended; 0 where all were completed, else 1.

        Raises:
          ConfigError: all have ended, and none has the metric that was named.
          PsrunError: there is nothing left in the folder.
        """
        self._console.print(f"watching {self._path}", markup=False, soft_wrap=True)
        try:
            if self._live:
                self._live.start()
            while True:
                began_s = time.monotonic()
                jobs = self._jobs.look()
                if self._ended(jobs):
                    break
                self._show(jobs)
                time.sleep(max(EVERY_S, _SHARE * (time.monotonic() - began_s)))
        finally:
            if self._live:
                self._live.stop()
        self._result(jobs)
        return ExitCode.DONE if jobs and all(job.status == "completed" for job in jobs) else ExitCode.FAILED

    def _ended(self, jobs: Sequence[Job]) -> bool:
        if not jobs:  # those that are to be run are not known yet
            return self._jobs.record.get("status") != "running"
        if not all(job.is_over for job in jobs):
            # A sweep that was interrupted leaves jobs behind that never began.
            return self._jobs.record.get("status") not in (None, "running") and not any(map(_is_under_way, jobs))
        if "status" in self._jobs.record:
            return self._jobs.record["status"] != "running" or self._is_quiet(jobs)
        return self._is_quiet(jobs)

    def _is_quiet(self, jobs: Sequence[Job]) -> bool:
        return time.time() - max((job.written_s for job in jobs), default=0.0) > jobs_.BETWEEN_JOBS_S

    def _show(self, jobs: Sequence[Job]) -> None:
        if self._live:
            shown = _that_fit(jobs, max(5, self._console.height - _ROOM))
            rest = [Text(f"and {len(jobs) - len(shown)} more", style="dim")] if len(shown) < len(jobs) else []
            self._live.update(Group(self._table(shown), *rest, self._summary(jobs)), refresh=True)
            return
        first, name = not self._states, self._compared_by(jobs)
        for job in jobs:
            if self._states.get(job.name) != job.status and job.status != "waiting" and not (first and job.is_over):
                self._print(_line(job, name))
            self._states[job.name] = job.status
        if first:
            self._print(self._summary(jobs))

    def _result(self, jobs: Sequence[Job]) -> None:
        name = self._compared_by(jobs)
        there = dict.fromkeys(name for job in jobs for name in job.metrics)
        if self._metric and self._metric not in there and there:
            raise ConfigError(f"--metric: no job has '{self._metric}'; choose one of {', '.join(there)}")
        self._console.print(self._table(jobs, name))
        for job in jobs:
            if job.error:
                self._print(Text(f"{job.name}  {job.status}: {job.error}", style="red"))
        self._print(self._summary(jobs))

    # -- what is compared

    def _compared_by(self, jobs: Sequence[Job]) -> str | None:
        there = {name for job in jobs for name in job.metrics}
        return self._named or next((name for name in WITHOUT_A_NAME if name in there), None)

    @property
    def _named(self) -> str | None:
        return self._metric or self._jobs.record.get("metric")

    def _best(self, jobs: Sequence[Job], name: str | None) -> Job | None:
        """The best of the jobs that have not failed, including running ones."""
        if name is None:
            return None
        record = self._jobs.record
        chosen = self._mode or (record.get("mode") if name == record.get("metric") else None)
        mode = chosen or ("min" if name.endswith(_SMALL_IS_GOOD) else "max")
        sign = 1 if mode == "min" else -1
        having = [job for job in jobs if name in job.metrics and job.status not in ("failed", "gone")]
        return min(having, key=lambda job: sign * job.metrics[name], default=None)

    # -- what is shown

    def _table(self, jobs: Sequence[Job], name: str | None = None) -> Table:
        name = name or self._compared_by(jobs)
        best = self._best(jobs, name)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("job", "overrides", "state", "epoch", "step", "steps/s", "newest"):
            words = heading in ("overrides", "state", "newest")
            table.add_column(
                heading, justify="left" if words else "right", overflow="fold", no_wrap=heading in ("job", "newest")
            )
        for job in jobs:
            style = "dim" if job.status == "waiting" else None
            doing = Text(job.doing, style=_STYLES.get(job.status, ""))
            cells: list[RenderableType] = [Text(job.apart), doing, *_progress(job)]
            newest = numbers(_newest(job, name)) + (" best" if job is best else "")
            table.add_row(job.name, *cells, newest, style="bold" if job is best else style)
        return table

    def _summary(self, jobs: Sequence[Job]) -> RenderableType:
        counts = {
            status: [job.status for job in jobs].count(status) for status in dict.fromkeys(j.status for j in jobs)
        }
        by_status = ", ".join(f"{count} {status}" for status, count in counts.items())
        many = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
        name = self._compared_by(jobs)
        best = self._best(jobs, name)
        if best is None or name is None:
            return Text(f"{many}: {by_status or 'none yet'}" + (f"; none has {name} yet" if name else ""))
        which = f"{name} {best.metrics[name]:.4g}, job {best.name}  {best.apart}".rstrip()
        return Text(f"{many}: {by_status}; best so far: {which}")

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, soft_wrap=True)


def _line(job: Job, name: str | None) -> Text:
    newest = numbers(_newest(job, name)) if job.is_over else ""
    return Text("  ".join(filter(None, (f"job {job.name}", job.apart, job.status, newest, job.error))))


def _is_under_way(job: Job) -> bool:
    return not job.is_over and job.status != "waiting"


def _that_fit(jobs: Sequence[Job], room: int) -> list[Job]:
    """Those under way first, then those that wait."""
    order = sorted(range(len(jobs)), key=lambda at: (jobs[at].is_over, jobs[at].status == "waiting", at))
    return [jobs[at] for at in sorted(order[:room])]


def _progress(job: Job) -> list[str]:
    """Epoch, step and rate."""
    progress = job.progress
    if progress is None:
        return ["", "", ""]
    return [f"{progress.epoch}/{progress.epochs}", f"{progress.step}/{progress.steps}", f"{progress.steps_per_s:.4g}"]


def _newest(job: Job, name: str | None) -> dict[str, float]:
    """The metric that jobs are compared by, or else the first there is."""
    if name is not None:
        return {name: job.metrics[name]} if name in job.metrics else {}
    return dict(list(job.metrics.items())[:1])
