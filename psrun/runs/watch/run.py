"""The live view of one run from outside: its events, the state of its tasks, and its result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, Group
from rich.errors import MarkupError
from rich.text import Text

from psrun.config.clusters import EngineJob
from psrun.config.topology import Task
from psrun.errors import ExitCode, PsrunError
from psrun.files import as_mapping
from psrun.results import run_folder, run_state
from psrun.results.console import ConsoleSink, ProgressLine, TaskRow, print_folded, task_table, warner
from psrun.results.events import METRICS, Event, EventReader
from psrun.results.run_folder import RunFolder
from psrun.results.run_state import QUIET_S, RunState
from psrun.results.task_files import Heartbeat, UsageMeter, age_s
from psrun.runs import states

EVERY_S = 0.5
_PATIENCE_S = 2.0  # with a run.json that cannot be read
_SEEN_WITHIN_S = 10.0  # on a shared disk
_SERVERS_FIRST = {"ps": 0, "worker": 1, "chief": 2}  # the order in which the run lists them


class RunView:
    """Follows the run in a folder to its end, on `console`.

    Args:
      wait_s: how long a run.json may be missing.
      continues: whether a scheduler still has the run, which may then continue after its end; None without a scheduler.
    """

    def __init__(
        self, path: Path, console: Console, *, wait_s: float, continues: Callable[[RunState], bool] | None = None
    ) -> None:
        self._path = path
        self._console = console
        self._wait_s = wait_s
        self._continues = continues
        self._sink = ConsoleSink(console)
        self._warn = warner(console)
        self._tail = EventReader(RunFolder(path).metrics)
        self._tasks = _Tasks()
        self._shown_step = 0
        self._has_end = False
        self._warned: set[str] = set()
        self._readable_s = self._held_s = time.monotonic()

    def follow(self) -> ExitCode:
        """Shows events until the run is over; its exit code. Raises PsrunError if it has no status or no folder."""
        try:
            while True:
                now = run_state.look(self._path)  # before the events: once the run has ended, all events are there
                self._read_events()
                self._sink.wait()
                if self._is_readable(now):
                    if self._is_over(now):
                        return self._result(now)
                    if now.ended:
                        self._sink.close()  # the tasks have ended; a job that starts the run again waits
                    else:
                        self._show(now)
                time.sleep(EVERY_S)
        finally:
            self._sink.close()

    def _is_over(self, now: RunState) -> bool:
        """Whether the run has ended and will not resume. Raises PsrunError if it exited without recording a status."""
        continues = self._continues(now) if self._continues else self._has_job(now)
        if continues or continues is None:
            self._held_s = time.monotonic()
        if continues is None and now.gone:
            raise PsrunError(self._no_status_message(now, now.gone))
        if time.monotonic() - self._held_s > _SEEN_WITHIN_S and not now.ended:
            raise PsrunError(self._no_status_message(now, "its job has ended"))
        return now.ended and not continues

    def _has_job(self, now: RunState) -> bool | None:
        """Whether the engine has a job of a run that is over, which may start it again; None if it has none."""
        if not (now.ended or now.gone):
            return None
        jobs = self._jobs(now)
        if jobs:
            if jobs[0].waits:
                shown = run_state.shown_path(self._path)
                text = f"{jobs[0].title} is {jobs[0].state}: the run resumes by itself; to end it: psrun stop {shown}"
                self._say(text)
            return True
        return None

    def _jobs(self, now: RunState) -> list[EngineJob]:
        try:
            return now.jobs()
        except PsrunError as error:
            self._once(str(error))
            return []

    def _read_events(self) -> None:
        try:
            events = self._tail.read()
        except OSError as error:
            raise PsrunError(f"{RunFolder(self._path).metrics} cannot be read: {error.strerror or error}") from error
        if self._tail.begun_again:
            self._once(f"{METRICS} was replaced; reading it from the beginning")
        if self._tail.broken:
            self._once(f"skipped lines of {METRICS} that are not events")
        for event in events:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        if event.step is not None:
            self._shown_step = event.step
        self._has_end |= event.kind == "end"
        if event.kind == "failure":
            self._tasks.restarted(event)
        try:
            self._sink.event(event)
        except (KeyError, TypeError, ValueError, AttributeError, MarkupError):  # of another version of psrun
            self._console.print(f"{event.kind}  step {event.step}", markup=False, highlight=False)

    def _is_readable(self, now: RunState) -> bool:
        if now.status == run_folder.NOT_RUN:
            raise PsrunError(f"the run in {self._path} has the status {now.status}: {states.state(now.status).means}")
        if not now.problem or now.status == run_folder.PENDING:
            self._readable_s = time.monotonic()
            return True
        if not self._path.exists():
            raise PsrunError(f"the run folder {self._path} was moved or deleted")
        if time.monotonic() - self._readable_s > max(self._wait_s, _PATIENCE_S):
            hint = "; to wait for a run to start, add --wait SECONDS" if now.problem.startswith("no ") else ""
            raise PsrunError(f"{self._path}: {now.problem}{hint}")
        return False

    def _show(self, now: RunState) -> None:
        if now.beats:
            progress = now.live_progress
            stale = progress is not None and progress.step < self._shown_step  # than the epoch that was just shown
            self._sink.view(task_table(self._tasks.rows(now)), None if stale else progress)
            return
        age = f"last written {now.quiet_s:.0f} s ago"
        if now.status == run_folder.PENDING:
            for job in self._jobs(now):
                self._say(f"{job.title} is {job.state}")
        doing = [ProgressLine(now.progress)] if now.progress else []
        self._sink.view(Group(*doing, Text(f"{'as of then' if doing else now.status}, {age}", style="dim")))
        if now.quiet_s > QUIET_S:
            self._once(f"the status is {now.status}, but nothing was written for {QUIET_S / 60:.0f} min")

    def _result(self, now: RunState) -> ExitCode:
        self._sink.close()
        error = as_mapping(now.result.get("error"))
        logs = run_state.shown_path(self._path / "logs")
        if now.status == "completed":
            if not self._has_end:  # such as of a plan
                self._console.print("[green]completed[/green]", highlight=False)
        else:
            style = states.state(now.status).style
            self._print(f"{now.status}: {error.get('message', 'no reason recorded')}\n(log: {logs})", style=style)
        if now.status == "interrupted":
            command = f"to resume: {now.resume_command}"
            self._console.print(command, markup=False, highlight=False, soft_wrap=True)  # whole, to be copied
        code = now.result.get("exit_code")
        return ExitCode(code) if code in list(ExitCode) else ExitCode.FAILED

    def _no_status_message(self, now: RunState, gone: str) -> str:
        return (
            f"the run in {self._path} has the status {now.status}, but {gone}; last written {now.quiet_s:.0f} s ago "
            f"(logs: {self._path / 'logs'}); to resume: {now.resume_command}"
        )

    def _once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

    def _say(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._print(text, style="dim")

    def _print(self, text: str, *, style: str | None = None) -> None:
        print_folded(self._console, Text(text, style=style or ""))


class _Tasks:
    """The tasks of a run by their heartbeats, with what they use of their machines."""

    def __init__(self) -> None:
        self._seen: dict[Task, Heartbeat] = {}
        self._restarts = Counter[str]()
        self._meter = UsageMeter()

    def restarted(self, event: Event) -> None:
        self._restarts.update(event.data.get("restarted", []))

    def rows(self, now: RunState) -> list[TaskRow]:
        self._seen.update(now.beats)
        order = sorted(self._seen, key=lambda task: (_SERVERS_FIRST.get(task.job, 3), task.job, task.index))
        return [self._row(task, now) for task in order]

    def _row(self, task: Task, now: RunState) -> TaskRow:
        beat = now.beats.get(task)
        restarts = self._restarts[str(task)]
        if beat is None:  # a task removes its file when it starts and when it ends
            return TaskRow(str(task), "starting" if restarts else "ended", restarts, None, None, None)
        if age_s(beat) > _SEEN_WITHIN_S:  # it hangs, or its machine is gone
            return TaskRow(str(task), beat.state, restarts, None, None, age_s(beat))
        return TaskRow(str(task), beat.state, restarts, *self._meter.read(str(task), beat.used), age_s(beat))
