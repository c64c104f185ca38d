"""The supervisor of a local cluster: starts its tasks, watches them, restarts what dies or hangs; no TensorFlow."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import dataclass
from typing import Any

import portpicker
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from psrun import choices
from psrun.cluster.files import Heartbeat, age_s
from psrun.cluster.probe import reachable
from psrun.cluster.processes import TaskProcess, end_all
from psrun.cluster.topology import CHIEF, Task
from psrun.config import RunConfig
from psrun.errors import BudgetSpentError, ExitCode
from psrun.reporting.console import ConsoleSink
from psrun.reporting.events import Event, Progress, Reporter
from psrun.reporting.run_folder import RunFolder
from psrun.stop import Stop

_ROUND_S = 0.1
_VIEW_EVERY_S = 0.5
_SERVERS_END_WITHIN_S = 5.0
_OWN_STALL_S = 2.0
_FOR_GOOD = (ExitCode.FAILED, ExitCode.USAGE)


def run(run_config: RunConfig, folder: RunFolder, stop: Stop, console: Console, *, started_s: float) -> ExitCode:
    """Runs the whole cluster to the end of its chief.

    Returns:
      The chief's exit code, or that of the signal that ended the run.

    Raises:
      BudgetSpentError: tasks failed more often than they may be restarted.
    """
    assert isinstance(run_config.cluster, choices.Local)
    supervisor = Supervisor(run_config.cluster, folder, ConsoleSink(console), started_s)
    stop.at_once = supervisor.kill_all
    stop.defer(run_config.cluster.restart.stop_timeout_s + 2 * _SERVERS_END_WITHIN_S)
    try:
        code = supervisor.watch(stop)
    finally:
        supervisor.close()
    return code


@dataclass
class _Failure:
    """A task that was lost, until the first step after it has been replaced."""

    task: Task
    cause: str
    at_s: float  # time.time
    step: int
    attempt: bool  # whether the chief had to start again
    restored: int | None = None


class Supervisor:
    """The tasks of one run and what has happened to them."""

    def __init__(self, cluster: choices.Local, folder: RunFolder, sink: ConsoleSink, started_s: float) -> None:
        self._restart, self._folder, self._sink = cluster.restart, folder, sink
        self._reporter = Reporter([folder], started_s=started_s)
        jobs = {"ps": cluster.num_ps, "worker": cluster.num_workers, "chief": 1}
        self._addresses = {
            Task(job, index): f"localhost:{portpicker.pick_unused_port()}"
            for job, n in jobs.items()
            for index in range(n)
        }
        every = [*self._addresses, *([Task("evaluator", 0)] if cluster.evaluator else [])]
        self._tasks = {task: TaskProcess(task, self._addresses, folder.path) for task in every}
        self._left = cluster.restart.budget
        self._failures: list[_Failure] = []
        self._recoveries: list[dict[str, Any]] = []
        self._step, self._told_bytes, self._shown_s = 0, 0, 0.0
        self._last_round_s = self._no_hangs_before_s = time.monotonic()
        self._chief_said: tuple[Any, float] = (None, time.monotonic())

    def watch(self, stop: Stop) -> ExitCode:
        """Starts all tasks and returns the exit code of the run once it is over."""
        for task in self._tasks.values():
            task.start()
        while not stop.requested.wait(_ROUND_S):
            self._tell()
            code = self._chief_code()
            if code is not None:
                self._end_servers()
                return code
            self._look()
            self._start_due()
            self._note_recoveries()
        assert stop.signum is not None
        self._reporter.emit("stopping", step=self._step, signal=signal.Signals(stop.signum).name)
        self._tell()
        self._tasks[CHIEF].send(signal.SIGTERM)
        end_all([self._tasks[CHIEF]], within_s=self._restart.stop_timeout_s)
        self._end_servers()
        return ExitCode.INTERRUPTED if stop.signum == signal.SIGINT else ExitCode.RESTART

    def close(self) -> None:
        """Leaves no process and no file of the supervision behind, and the recoveries in run.json."""
        self.kill_all()
        self._tell()
        self._sink.close()
        self._folder.reload()
        self._folder.update(recoveries=self._recoveries)
        shutil.rmtree(self._folder.path / ".tasks", ignore_errors=True)

    def _end_servers(self) -> None:
        """Asks those that serve to end; they do so within a second, with 0."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.send(signal.SIGTERM)
        end_all(tasks, within_s=_SERVERS_END_WITHIN_S)

    def kill_all(self) -> None:
        for task in self._tasks.values():
            task.kill()

    def _chief_code(self) -> ExitCode | None:
        """The exit code of the run, if the chief has ended it."""
        code = self._tasks[CHIEF].code
        ended = self._tasks[CHIEF].start_at_s is None and code in (ExitCode.DONE, *_FOR_GOOD)
        return ExitCode(code) if ended and code is not None else None

    # -- what goes wrong

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_round_s > _OWN_STALL_S:
            # This process itself was held up, and with it perhaps the whole machine: late beats mean nothing yet.
            self._no_hangs_before_s = now_s + self._restart.heartbeat_timeout_s
        self._last_round_s = now_s
        beat = self._tasks[CHIEF].heartbeat()
        if beat and beat.step is not None:
            self._step = beat.step
        for task in self._tasks.values():
            if task.process is None or task.start_at_s is not None:
                continue
            if not task.running:
                self._failed(task, _ended(task.code))
            elif now_s >= self._no_hangs_before_s:
                cause = self._hangs(task)
                if cause:
                    self._failed(task, cause)

    def _hangs(self, task: TaskProcess) -> str | None:
        """Why a task that runs must be taken for hanging; None where it need not."""
        beat = task.heartbeat()
        if beat is None:
            late = time.time() - task.started_s > self._restart.start_timeout_s
            return f"did not come up within {self._restart.start_timeout_s:.0f} s" if late else None
        if age_s(beat) > self._restart.heartbeat_timeout_s:
            return f"hangs: not heard of for {age_s(beat):.0f} s"
        return self._chief_stalls(beat) if task.task == CHIEF else None

    def _chief_stalls(self, beat: Heartbeat) -> str | None:
        said = (beat.pid, beat.state, beat.step)
        if said != self._chief_said[0]:
            self._chief_said = (said, time.monotonic())
        quiet_s = time.monotonic() - self._chief_said[1]
        limit_s = self._restart.start_timeout_s
        if beat.state == "training":
            slowest_s = self._restart.progress_factor * (beat.slowest_step_s or 0.0)
            limit_s = max(self._restart.progress_timeout_s, slowest_s)
        if quiet_s <= limit_s:
            return None
        cut = [task for task, where in self._addresses.items() if not reachable(where, timeout_s=1.0)]
        suspects = f"; not reached: {', '.join(map(str, cut))}" if cut else ""
        return f"makes no progress: {beat.state} at step {beat.step} for {quiet_s:.0f} s{suspects}"

    def _failed(self, task: TaskProcess, cause: str) -> None:
        task.kill()
        attempt = task.task.job in ("ps", "chief")
        self._failures = [failure for failure in self._failures if failure.task != task.task]
        self._failures.append(_Failure(task.task, cause, time.time(), self._step, attempt))
        if self._left == 0:
            self._reporter.emit("failure", step=self._step, task=str(task.task), cause=cause, action="the run ends")
            raise BudgetSpentError(
                f"{task.task} {cause}; all {self._restart.budget} restarts (cluster.restart.budget) are spent",
                task=str(task.task),
            )
        self._left -= 1
        # A chief that starts again would leave its tables behind in servers that do not: they start with it.
        group = [t for t in self._tasks.values() if attempt and t.task.job in ("ps", "chief")] or [task]
        delay_s = self._delay_s(task)
        for member in group:
            member.kill()
            member.restarts += 1
            member.start_at_s = time.monotonic() + delay_s
        action = f"restarting {', '.join(str(member.task) for member in group)}"
        self._reporter.emit("failure", step=self._step, task=str(task.task), cause=cause, action=action)

    def _delay_s(self, task: TaskProcess) -> float:
        return (
            min(self._restart.backoff_s * 2 ** (task.restarts - 1), self._restart.max_backoff_s) if task.restarts else 0
        )

    def _start_due(self) -> None:
        for task in self._tasks.values():
            if task.start_at_s is not None and time.monotonic() >= task.start_at_s:
                task.start()

    # -- what gets well again

    def _note_recoveries(self) -> None:
        chief = self._tasks[CHIEF].heartbeat()
        for failure in list(self._failures):
            process = self._tasks[failure.task]
            beat = process.heartbeat()
            if beat is None or process.start_at_s is not None:
                continue
            if failure.task.job == "evaluator" or self._trains_again(failure, chief):
                self._failures.remove(failure)
                self._recovered(failure)

    def _trains_again(self, failure: _Failure, chief: Heartbeat | None) -> bool:
        if chief is None or chief.state == "starting" or chief.step is None:
            return False
        if failure.attempt:
            # Its first beat in another state comes with the first step.
            failure.restored = failure.restored if failure.restored is not None else 0
            return True
        if failure.restored is None:  # the worker serves again: the next step is the first one after it
            failure.restored = chief.step
            return False
        return chief.step > failure.restored

    def _recovered(self, failure: _Failure) -> None:
        lost = max(0, failure.step - (failure.restored or 0)) if failure.attempt else 0
        found = {
            "task": str(failure.task),
            "cause": failure.cause,
            "at_s": round(failure.at_s - self._reporter.started_s, 3),
            "seconds": round(time.time() - failure.at_s, 3),
            "steps_lost": lost,
            "steps_repeated": lost,
        }
        self._recoveries.append(found)
        self._reporter.emit("recovery", step=self._step, **found)

    # -- what is told

    def _tell(self) -> None:
        """Passes on what has been added to metrics.jsonl, by the chief or from here, and shows the tasks."""
        path = self._folder.path / "metrics.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._told_bytes)
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._told_bytes += len(whole)
            for line in whole.splitlines():
                self._heard(json.loads(line))
        if time.monotonic() - self._shown_s >= _VIEW_EVERY_S:
            self._shown_s = time.monotonic()
            beat = self._tasks[CHIEF].heartbeat()
            self._sink.tasks(self._table(), Progress(**beat.progress) if beat and beat.progress else None)

    def _heard(self, line: dict[str, Any]) -> None:
        kind, step, wall_s = line.pop("event"), line.pop("step"), line.pop("wall_s")
        if kind == "restored":
            for failure in self._failures:
                failure.restored = step if failure.attempt else failure.restored
        if kind == "epoch":
            self._count_repeated(line["steps_repeated"])
        self._sink.event(Event(kind, step, wall_s, line))

    def _count_repeated(self, steps: int) -> None:
        """Steps that a lost worker had applied before they were run again are seen at the next join."""
        workers = [found for found in self._recoveries if found["task"].startswith("worker")]
        if workers:
            others = sum(found["steps_repeated"] for found in workers[:-1])
            workers[-1]["steps_repeated"] = max(workers[-1]["steps_repeated"], steps - others)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("task", "state", "restarts", "memory", "CPU", "last heartbeat"):
            table.add_column(heading, justify="left" if heading in ("task", "state") else "right")
        for task in self._tasks.values():
            beat, (memory, processor) = task.heartbeat(), task.usage()
            state = "restarting" if task.start_at_s is not None else beat.state if beat else "starting"
            heard = f"{age_s(beat):.1f} s ago" if beat else "-"
            table.add_row(str(task.task), state, str(task.restarts), decimal(memory), f"{processor:.0f} %", heard)
        return table


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
