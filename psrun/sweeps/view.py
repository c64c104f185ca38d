"""Console output of a sweep: a line per job while it runs, live on a terminal, and a table at its end."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from psrun.errors import SweepError
from psrun.results import sweep_state
from psrun.results.console import numbers, warner
from psrun.results.run_folder import OVER
from psrun.results.sweep_record import Job, Sweep
from psrun.results.sweep_state import State

_EVERY_S = 0.5
_STYLES = {"completed": "green", "failed": "red", "interrupted": "yellow", "waiting": "dim"}


class View:
    """Looks at the folders of a sweep's jobs, keeps its record and shows both; `console` may be a terminal or not."""

    def __init__(self, sweep: Sweep, console: Console) -> None:
        self._sweep, self._console = sweep, console
        self._states: dict[int, State] = {}
        self._one_at_a_time = threading.Lock()
        self._ended, self._warned = threading.Event(), False
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._thread = threading.Thread(target=self._watch, name="psrun-view", daemon=True)

    def start(self) -> None:
        self.say(f"[bold]sweep[/bold]  folder {self._sweep.path}")
        if self._live:
            self._live.start()
        self._thread.start()

    def stop(self) -> None:
        """Looks a last time."""
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join()
        self.look()
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.look()
            if self._live:
                self._live.update(self._overview())

    def look(self) -> None:
        """Updates the record and prints changes."""
        with self._one_at_a_time:
            before = {number: job.status for number, job in self._sweep.jobs.items()}
            self._states = sweep_state.refresh(self._sweep)
            changed = [job for number, job in self._sweep.jobs.items() if job.status != before.get(number)]
            if not self._live:
                for job in changed:
                    if job.status in ("running", *OVER):
                        self.say(self._line(job, self._states[job.number]))
            if changed:
                self._write()

    def _write(self) -> None:
        try:
            self._sweep.write()
        except SweepError as error:  # the jobs' folders hold the same state
            if not self._warned:
                self._warned = True
                warner(self._console)(str(error))

    def _line(self, job: Job, found: State) -> str:
        apart = sweep_state.told_apart(list(self._sweep.jobs.values()))[job.number]
        parts = [escape(f"job {job.number}  {apart}".strip()), _coloured(job.status)]
        if job.status in OVER and job.wall_s is not None:
            parts.append(f"in {job.wall_s:.1f} s")
        if job.status == "completed":
            parts.append(numbers(self._compared_by(found)))
        return "  ".join([*parts, *([escape(job.error)] if job.error else [])])

    def _compared_by(self, found: State) -> dict[str, float]:
        name, value = (
            sweep_state.metric_name(self._sweep, found.metrics),
            sweep_state.measured(self._sweep, found.metrics),
        )
        return {name: value} if name and value is not None else {}

    @property
    def _metric(self) -> str:
        """The name of what jobs are compared by."""
        names = (sweep_state.metric_name(self._sweep, found.metrics) for found in self._states.values())
        return next(filter(None, names), "metric")

    def _overview(self) -> Group:
        """A row a job: those under way, those that wait and the newest that are over, as far as there is room."""
        jobs = sorted(self._sweep.jobs.values(), key=lambda job: job.number)
        apart = sweep_state.told_apart(jobs) if jobs else {}
        table = _table("job", "overrides", "state", "step", "steps/s", "newest")
        room = max(5, self._console.height - 6)
        shown = _that_fit(jobs, room)
        for job in shown:
            found = self._states.get(job.number, State())
            progress = found.progress
            step = f"{progress.step}/{progress.steps}" if progress else ""
            rate = f"{progress.steps_per_s:.4g}" if progress else ""
            newest = self._compared_by(found) or dict(list(found.metrics.items())[:1])
            table.add_row(
                str(job.number), Text(apart[job.number]), found.doing, step, rate, numbers(newest),
                style=_STYLES.get(found.status),
            )  # fmt: skip
        over = sum(job.status in OVER for job in jobs)
        rest = [Text(f"and {len(jobs) - len(shown)} more", style="dim")] if len(shown) < len(jobs) else []
        return Group(table, *rest, Text(f"{over} of {len(jobs)} jobs finished{self._best_so_far()}"))

    def _best_so_far(self) -> str:
        best = sweep_state.best(self._sweep)
        if best is None:
            return ""
        apart = sweep_state.told_apart(list(self._sweep.jobs.values()))[best.number]
        return f"; best so far: {self._metric} {best.metric:.4g}, job {best.number} {apart}".rstrip()

    def result(self) -> None:
        """The table at the end."""
        sweep = self._sweep
        jobs = sorted(sweep.jobs.values(), key=lambda job: job.number)
        if not jobs:
            return
        self._states = self._states or sweep_state.refresh(sweep)
        apart, best = sweep_state.told_apart(jobs), sweep_state.best(sweep)
        errors = ["error"] if any(job.error for job in jobs) else []
        table = _table("job", "overrides", "status", self._metric, "seconds", *errors)
        for job in jobs:
            metric = "" if job.metric is None else f"{job.metric:.4g}" + (" best" if job is best else "")
            seconds = "" if job.wall_s is None else f"{job.wall_s:.1f}"
            status = _coloured(job.status).replace("waiting", "not run")
            cells = [str(job.number), escape(apart[job.number]), status, metric, seconds]
            table.add_row(*cells, *([escape(job.error or "")] if errors else []))
        self._console.print(table)


def _that_fit(jobs: Sequence[Job], room: int) -> list[Job]:
    order = {"running": 0, "starting": 0, "waiting": 1}
    chosen = sorted(jobs, key=lambda job: (order.get(job.status, 2), job.number))[:room]
    return sorted(chosen, key=lambda job: job.number)


def _coloured(status: str) -> str:
    style = _STYLES.get(status)
    return f"[{style}]{status}[/{style}]" if style else status


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        words = heading in ("overrides", "state", "status", "newest", "error")
        table.add_column(heading, justify="left" if words else "right", overflow="fold")
    return table
