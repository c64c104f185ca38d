"""A sweep on the console, seen by the process that runs it or from outside.

On a terminal all jobs are a live view; elsewhere each change is a line. A table of all jobs ends both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from psrun.errors import ConfigError, ExitCode, SweepError
from psrun.results import run_state
from psrun.results.console import numbers, print_folded, warner
from psrun.results.run_folder import PRUNED
from psrun.runs import states
from psrun.runs.sweeps.sweep import Job, Sweep
from psrun.runs.sweeps.sweep_state import SweepReader, SweepState, counted
from psrun.runs.watch.run import EVERY_S

_SHARE = 10  # at most one part in ten of the time is spent on reading
_OTHER_LINES = 6  # of a terminal: what is not a job


class SweepScreen:
    """Shows states of a sweep on `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def start(self) -> None:
        if self._live:
            self._live.start()

    def stop(self) -> None:
        if self._live:
            self._live.stop()

    def show(self, state: SweepState, changed: Sequence[Job]) -> None:
        """Shows all jobs that fit a terminal; elsewhere prints a line for each of the `changed` jobs."""
        if self._live:
            self._live.update(overview(state, max(5, self._console.height - _OTHER_LINES)), refresh=True)
            return
        for job in changed:
            if job.has_started:
                self.print(_line(state, job))

    def result(self, state: SweepState) -> None:
        """Prints the table of all jobs."""
        self._console.print(_result(state))
        self.print(summary(state))

    def print(self, text: str | Text) -> None:
        print_folded(self._console, Text(text) if isinstance(text, str) else text)


class SweepView:
    """Follows the jobs in a folder to the end of all, on `console`. It ranks them as SweepReader does."""

    def __init__(self, path: Path, console: Console, *, metric: str | None, mode: str | None) -> None:
        self._path = path
        self._console = console
        self._metric = metric
        self._reader = SweepReader(path, metric=metric, mode=mode)
        self._screen = SweepScreen(console)
        self._statuses: dict[str, str] | None = None  # that were shown

    def follow(self) -> ExitCode:
        """Shows the jobs until all have ended; 0 if all completed, but for those that a search has pruned, else 1.

        Raises:
          ConfigError: all have ended, and none has the metric that was named.
          PsrunError: nothing is left in the folder.
        """
        self._screen.print(f"watching {run_state.shown_path(self._path)}")
        try:
            self._screen.start()
            while True:
                began_s = time.monotonic()
                state = self._reader.look()
                if state.is_over:
                    break
                self._show(state)
                time.sleep(max(EVERY_S, _SHARE * (time.monotonic() - began_s)))
        finally:
            self._screen.stop()
        names = dict.fromkeys(name for job in state.jobs for name in job.metrics)
        if self._metric and names and self._metric not in names:
            raise ConfigError(f"--metric: no job has '{self._metric}'; choose one of {', '.join(names)}")
        self._screen.result(state)
        return ExitCode.DONE if {*state.counts} in ({"completed"}, {"completed", PRUNED}) else ExitCode.FAILED

    def _show(self, state: SweepState) -> None:
        before = self._statuses
        self._statuses = {job.folder: job.status for job in state.jobs}
        if before is not None:
            self._screen.show(state, [job for job in state.jobs if job.status != before.get(job.folder)])
            return
        self._screen.show(state, [job for job in state.jobs if not job.is_over])
        if not self._console.is_terminal:
            self._screen.print(summary(state))


class SweepMonitor:
    """Shows the jobs of `sweep`, which this process runs, on `console`, and keeps its record."""

    def __init__(self, sweep: Sweep, console: Console) -> None:
        self._sweep = sweep
        self._console = console
        self._screen = SweepScreen(console)
        self._reader = SweepReader(sweep.path, metric=sweep.metric, mode=sweep.mode, sweep=sweep)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._watch, name="psrun-sweep-monitor", daemon=True)

    def start(self) -> None:
        self._screen.print(Text.assemble(("sweep", "bold"), f"  folder {run_state.shown_path(self._sweep.path)}"))
        self._screen.start()
        self._thread.start()

    def stop(self) -> None:
        """Stops after a last look."""
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join()
        self.look()
        self._screen.stop()

    def print(self, text: str) -> None:
        self._screen.print(text)

    def look(self) -> None:
        """Updates the record and shows what has changed."""
        with self._lock:
            self._screen.show(*self._updated())

    def update(self) -> None:
        """Updates the record and shows nothing."""
        with self._lock:
            self._updated()

    def result(self) -> SweepState | None:
        """Prints the table of all jobs, and returns their state; None without a job."""
        if not self._sweep.jobs:
            return None
        state = self._reader.look()
        self._screen.result(state)
        return state

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.look()

    def _updated(self) -> tuple[SweepState, list[Job]]:
        """The current state, and the jobs whose status has changed."""
        state = self._reader.look()
        changed = self._sweep.update(state.jobs)
        if changed:
            try:
                self._sweep.write()
            except SweepError as error:  # the folders of the jobs hold the same state
                if not self._warned:
                    self._warned = True
                    warner(self._console)(str(error))
        return state, changed


def overview(state: SweepState, room: int) -> Group:
    """One row per job: running jobs first, then those that have not started, up to `room` rows."""
    table = _table("job", "overrides", "state", "epoch", "step", "steps/s", "newest")
    order = sorted(range(len(state.jobs)), key=lambda at: (state.jobs[at].is_over, not state.jobs[at].has_started, at))
    best = state.best
    for job in (state.jobs[at] for at in sorted(order[:room])):
        cells = ["", "", ""]
        if progress := job.progress:
            done = f"{progress.step}/{progress.steps}"
            cells = [f"{progress.epoch}/{progress.epochs}", done, f"{progress.steps_per_s:.4g}"]
        newest = numbers(state.ranking(job)) + (" best" if job is best else "")
        style = "bold" if job is best else None
        table.add_row(Text(job.folder), Text(job.apart), _styled(job.doing, job.status), *cells, newest, style=style)
    more = len(state.jobs) - room
    return Group(table, *([Text(f"and {more} more", style="dim")] if more > 0 else []), summary(state))


def summary(state: SweepState) -> Text:
    """The number of jobs by status, and the best job."""
    many = "1 job" if len(state.jobs) == 1 else f"{len(state.jobs)} jobs"
    counts = counted(state.counts) or "none yet"
    best = state.best
    name = state.metric
    if best is None or name is None:
        return Text(f"{many}: {counts}" + (f"; none has {name} yet" if name else ""))
    so_far = "" if all(job.is_over for job in state.jobs) else " so far"
    text = f"{many}: {counts}; best{so_far}: {name} {state.value(best):.4g}, job {best.folder}  {best.apart}"
    return Text(text.rstrip())


def _line(state: SweepState, job: Job) -> Text:
    seconds = f"in {job.wall_s:.1f} s" if job.is_over and job.wall_s is not None else ""
    newest = numbers(state.ranking(job)) if job.is_over else ""
    parts = [Text(f"job {job.folder}"), Text(job.apart), _styled(job.status, job.status)]
    return Text("  ").join(filter(None, [*parts, Text(seconds), Text(newest), Text(job.error or "")]))


def _result(state: SweepState) -> Table:
    """One row per job, the best one first."""
    errors = ["error"] if any(job.error for job in state.jobs) else []
    best = state.best
    table = _table("job", "overrides", "status", state.title, "seconds", *errors)
    for job in state.ranked:
        measured = state.value(job)
        value = "" if measured is None else f"{measured:.4g}"
        if job is best:
            value += " best"
        seconds = "" if job.wall_s is None else f"{job.wall_s:.1f}"
        status = _styled(job.status, job.status)
        error = [Text(job.error or "")] if errors else []
        table.add_row(Text(job.folder), Text(job.apart), status, value, seconds, *error)
    return table


def _styled(text: str, status: str) -> Text:
    return Text(text, style=states.state(status).style)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        words = heading in ("overrides", "state", "status", "newest", "error")
        table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=heading == "job")
    return table
