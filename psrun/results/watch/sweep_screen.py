"""A sweep on the console: live on a terminal, a line per change elsewhere, and a table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from psrun.results.console import numbers
from psrun.results.sweep_state import JobState, SweepState

_STYLES = {
    "completed": "green", "failed": "red", "gone": "red", "unknown": "red", "interrupted": "yellow", "waiting": "dim",
}  # fmt: skip
_OTHER_LINES = 6  # of a terminal: what is not a job


class SweepScreen:
    """Shows states of a sweep on `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    @property
    def is_live(self) -> bool:
        return self._live is not None

    def start(self) -> None:
        if self._live:
            self._live.start()

    def stop(self) -> None:
        if self._live:
            self._live.stop()

    def show(self, state: SweepState, changed: Sequence[JobState]) -> None:
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
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)


def overview(state: SweepState, room: int) -> Group:
    """One row per job: running jobs first, then those that have not started, up to `room` rows."""
    table = _table("job", "overrides", "state", "epoch", "step", "steps/s", "newest")
    shown, best = _that_fit(state.jobs, room), state.best
    for job in shown:
        progress = job.progress
        epoch, step, rate = (
            (f"{progress.epoch}/{progress.epochs}", f"{progress.step}/{progress.steps}", f"{progress.steps_per_s:.4g}")
            if progress
            else ("", "", "")
        )
        newest = numbers(state.ranking(job)) + (" best" if job is best else "")
        style = "bold" if job is best else None
        cells = [epoch, step, rate, newest]
        table.add_row(Text(job.name), Text(job.apart), _styled(job.doing, job.status), *cells, style=style)
    more = len(state.jobs) - len(shown)
    return Group(table, *([Text(f"and {more} more", style="dim")] if more else []), summary(state))


def summary(state: SweepState) -> Text:
    """The number of jobs by status, and the best job."""
    many = "1 job" if len(state.jobs) == 1 else f"{len(state.jobs)} jobs"
    counts = ", ".join(f"{count} {status}" for status, count in state.counts.items()) or "none yet"
    best, name = state.best, state.metric
    if best is None or name is None:
        return Text(f"{many}: {counts}" + (f"; none has {name} yet" if name else ""))
    so_far = "" if all(job.is_over for job in state.jobs) else " so far"
    return Text(
        f"{many}: {counts}; best{so_far}: {name} {best.metrics[name]:.4g}, job {best.name}  {best.apart}".rstrip()
    )


def _line(state: SweepState, job: JobState) -> Text:
    seconds = f"in {job.wall_s:.1f} s" if job.is_over and job.wall_s is not None else ""
    newest = numbers(state.ranking(job)) if job.is_over else ""
    parts = [Text(f"job {job.name}"), Text(job.apart), _styled(job.status, job.status)]
    return Text("  ").join(filter(None, [*parts, Text(seconds), Text(newest), Text(job.error)]))


def _result(state: SweepState) -> Table:
    errors = ["error"] if any(job.error for job in state.jobs) else []
    name, best = state.metric or "metric", state.best
    table = _table("job", "overrides", "status", name, "seconds", *errors)
    for job in state.jobs:
        value = f"{job.metrics[name]:.4g}" + (" best" if job is best else "") if name in job.metrics else ""
        seconds = "" if job.wall_s is None else f"{job.wall_s:.1f}"
        status = _styled(job.status if job.has_started else "not run", job.status)
        table.add_row(Text(job.name), Text(job.apart), status, value, seconds, *([Text(job.error)] if errors else []))
    return table


def _that_fit(jobs: Sequence[JobState], room: int) -> list[JobState]:
    order = sorted(range(len(jobs)), key=lambda at: (jobs[at].is_over, not jobs[at].has_started, at))
    return [jobs[at] for at in sorted(order[:room])]


def _styled(text: str, status: str) -> Text:
    return Text(text, style=_STYLES.get(status, ""))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        words = heading in ("overrides", "state", "status", "newest", "error")
        table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=heading == "job")
    return table
