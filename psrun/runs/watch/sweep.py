"""A sweep on the console, seen by the process that runs it or from outside.

On a terminal all jobs are a live view; elsewhere each change is a line. A table of all jobs ends both.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from psrun.errors import ConfigError, ExitCode, SweepError
from psrun.results import run_state
from psrun.results.console import numbers, print_folded, warner
from psrun.results.run_folder import PRUNED
from psrun.runs import states
from psrun.runs.report.table import with_short_keys
from psrun.runs.sweeps.sweep import Job, Sweep
from psrun.runs.sweeps.sweep_state import SweepReader, SweepState, counted
from psrun.runs.watch.run import EVERY_S

_SHARE = 10  # at most one part in ten of the time is spent on reading
_OTHER_LINES = 6  # of a terminal: what is not a job
_OVERRIDES = "overrides"  # the heading of the overrides that not all jobs have
_SPARE = ("steps/s", "epoch", "step")  # the columns of the overview that a narrow terminal hides first
_BETWEEN = 2  # characters between two columns


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
            room = max(5, self._console.height - _OTHER_LINES)
            self._live.update(overview(state, self._console, room), refresh=True)
            return
        for job in changed:
            if job.has_started:
                self.print(_line(state, job))

    def result(self, state: SweepState) -> None:
        """Prints the table of all jobs."""
        self._console.print(_result(state, self._console.width))
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


def overview(state: SweepState, console: Console, room: int) -> Group:
    """A row per job in up to `room` lines: first running jobs, then those that have not started, then the others.

    A line below counts the jobs that have no room.
    """
    order = sorted(range(len(state.jobs)), key=lambda at: (state.jobs[at].is_over, not state.jobs[at].has_started, at))
    texts = with_short_keys([job.differing for job in state.jobs])
    cells = {at: _cells(state, state.jobs[at]) for at in order}
    headings = ["job", "state", "epoch", "step", "steps/s", state.metric or "newest"]
    widths = {}
    for heading in headings:
        widths[heading] = _BETWEEN + max([cell_len(heading), *(row[heading].cell_len for row in cells.values())])
    longest = max((cell_len(text) for text in texts), default=0)
    least = min(_longest_word(texts), console.width // 2)
    for heading in _SPARE:
        if sum(widths.values()) + least > console.width:
            del widths[heading]
    width = max(least, min(longest, console.width - sum(widths.values())), len(_OVERRIDES))
    number, *others = widths
    table = _table(number, _OVERRIDES, *others, width=width)
    shown = 0
    for at in order:
        lines = len(Text(texts[at]).wrap(console, width))
        if lines > room:
            break
        room -= lines
        row = [Text(texts[at]), *(cells[at][heading] for heading in others)]
        table.add_row(cells[at][number], *row, style="bold" if state.jobs[at] is state.best else None)
        shown += 1
    rows: list[Table | Text] = [table]
    if shown < len(order):
        counts = Counter(state.jobs[at].status for at in order[shown:])
        rows.append(Text(f"and {len(order) - shown} more: {counted(counts)}", style="dim"))
    return Group(*rows, summary(state))


def _cells(state: SweepState, job: Job) -> dict[str, Text]:
    """The texts of a job in the overview by heading, without its overrides."""
    epoch = step = rate = ""
    progress = job.progress
    if progress:
        epoch = f"{progress.epoch}/{progress.epochs}"
        step = f"{progress.step}/{progress.steps}"
        rate = "" if progress.steps_per_s is None else f"{progress.steps_per_s:.4g}"
    newest = numbers(state.ranking(job))
    if state.metric is not None:  # the heading
        value = state.value(job)
        newest = "" if value is None else f"{value:.4g}"
    if job is state.best:
        newest += " best"
    texts = {"job": job.folder, "epoch": epoch, "step": step, "steps/s": rate, state.metric or "newest": newest}
    return {"state": _styled(job.doing, job.status), **{heading: Text(text) for heading, text in texts.items()}}


def _longest_word(texts: Sequence[str]) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


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


def _result(state: SweepState, width: int) -> Table:
    """One row per job, the best one first."""
    errors = ["error"] if any(job.error for job in state.jobs) else []
    best = state.best
    texts = with_short_keys([job.differing for job in state.ranked])
    least = min(_longest_word(texts), width // 2)
    table = _table("job", _OVERRIDES, "status", state.title, "seconds", *errors, least=least)
    for job, text in zip(state.ranked, texts):
        measured = state.value(job)
        value = "" if measured is None else f"{measured:.4g}"
        if job is best:
            value += " best"
        seconds = "" if job.wall_s is None else f"{job.wall_s:.1f}"
        status = _styled(job.status, job.status)
        error = [Text(job.error or "")] if errors else []
        table.add_row(Text(job.folder), Text(text), status, value, seconds, *error)
    return table


def _styled(text: str, status: str) -> Text:
    return Text(text, style=states.state(status).style)


def _table(*headings: str, width: int | None = None, least: int | None = None) -> Table:
    """A table without rows.

    Args:
      width, least: the characters of the overrides; the least number of them.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        words = heading in (_OVERRIDES, "state", "status", "newest", "error")
        column: dict[str, Any] = {"justify": "left" if words else "right", "overflow": "fold"}
        if heading == _OVERRIDES:
            column |= {"width": width, "min_width": least}
        else:
            column["no_wrap"] = heading != "error"
        table.add_column(heading, **column)
    return table
