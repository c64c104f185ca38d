"""The supervisor of a cluster on any engine: starts, monitors and restarts its tasks. Does not import TensorFlow."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping

from psrun.cluster.probe import answering
from psrun.config import choices
from psrun.config.topology import CHIEF, Task
from psrun.errors import ConfigError, ExitCode, PsrunError, final
from psrun.launch.backend import CLOCK, Backend, Clock, Launch, TaskHandle, end_all
from psrun.launch.losses import HangDetector, Recoveries, RestartPolicy, TrainingStatus
from psrun.results.console import ConsoleSink, TaskRow, task_table
from psrun.results.events import Event, EventReader
from psrun.results.run_folder import is_over
from psrun.results.task_files import UsageMeter, age_s, shared

_ROUND_S = 0.1
_VIEW_EVERY_S = 0.5
_SERVERS_END_WITHIN_S = 5.0
_TAIL_BYTES = 64 * 1024  # of a log, searched for the error that ended its task


class Supervisor:
    """Supervises the tasks of one run."""

    def __init__(self, launch: Launch, backend: Backend, clock: Clock = CLOCK) -> None:
        cluster = launch.run.cluster
        assert isinstance(cluster, choices.Supervised)
        self._backend = backend
        self._clock = clock
        self._plan = launch.plan
        self._tasks = backend.tasks
        self._folder = launch.folder
        self._stop = launch.stop
        self._reporter = launch.reporter
        self._sidecar = launch.run.sidecar
        self._evaluator = launch.plan.evaluator
        self._evaluator_lost = False
        self._restart = cluster.restart
        self._hang_limits = cluster.hang_limits
        self._policy = RestartPolicy.of(cluster.restart)
        self._num_restarts = 0
        self._detectors: dict[Task, HangDetector] = {}
        self._recoveries = Recoveries(launch.reporter)
        self._relay = ProgressRelay(
            launch.folder.new_events(),
            ConsoleSink(launch.console, verbose=launch.run.run.verbose),
            self._recoveries,
            self._tasks,
            clock,
        )
        self._step = 0

    def run(self) -> ExitCode:
        """Runs all tasks to the end of the chief, and leaves no process behind.

        Returns:
          The chief's exit code, or the code of the signal that ended the run.

        Raises:
          BudgetSpentError: the restart budget is exhausted.
          ConfigError: a task ended with an error of the configuration.
          Interrupted: a signal ended the run, and the chief could not record it.
          PsrunError: the engine cannot continue the run, or the chief failed and could not record it.
        """
        self._stop.call_before_exit(self._backend.kill_all)
        self._stop.defer(self._restart.stop_timeout_s + 2 * _SERVERS_END_WITHIN_S)
        try:
            return self._watch()
        finally:
            self._close()

    def _watch(self) -> ExitCode:
        """Starts all tasks and returns the exit code of the run once it is over."""
        for task in self._tasks.values():
            self._start(task)
        while not self._stop.requested.wait(_ROUND_S):
            self._relay.update()
            self._backend.look()
            code = self._chief_code()
            if code is not None:
                if self._sidecar is not None:
                    self._await_evaluator(self._sidecar.wait_s)
                self._end_servers()
                self._require_outcome(code)
                return code
            self._look()
            self._start_due()
            self._recoveries.look(TrainingStatus.of(self._tasks[CHIEF].heartbeat()), self._is_up)
        return self._end_by_signal()

    def _end_by_signal(self) -> ExitCode:
        """Ends the chief, which saves, then the servers."""
        signum = self._stop.signum
        assert signum is not None
        name = signal.Signals(signum).name
        shown = f"{self._stop.reason} ({name})" if self._stop.reason else name
        self._reporter.emit("stopping", step=self._step, signal=shown)
        self._relay.update()
        chief = self._tasks[CHIEF]
        chief.send(signum)
        end_all([chief], self._clock, within_s=self._restart.stop_timeout_s)
        self._end_servers()
        return self._stop.outcome(chief.code, self._folder.stored())

    def _close(self) -> None:
        """Ends all processes, removes the files of the tasks, and records the recoveries in run.json."""
        for task in self._tasks.values():
            task.kill()
        self._relay.close()
        self._folder.emit("recoveries", rows=self._recoveries.rows)
        shutil.rmtree(shared(self._folder.path), ignore_errors=True)

    def _await_evaluator(self, within_s: float) -> None:
        """Waits for the sidecar evaluator, which exits after the last checkpoint."""
        assert self._evaluator is not None
        task = self._tasks[self._evaluator]
        deadline_s = self._clock.now_s() + within_s
        while task.code != ExitCode.DONE and not self._evaluator_lost:
            if self._clock.now_s() > deadline_s or self._stop.requested.wait(_ROUND_S):
                self._continue_without(task, "has not evaluated the last checkpoint")
                break
            if task.start_at_s is None:
                self._look_at(task, task.code)
            elif self._clock.now_s() >= task.start_at_s:
                self._start(task)
            self._relay.update()
            self._backend.look()

    def _end_servers(self) -> None:
        """Asks the servers to exit; they do so within a second, with code 0."""
        tasks = list(self._tasks.values())
        for task in tasks:
            if task.task.job in self._plan.serving:
                task.send(signal.SIGTERM)
        end_all(tasks, self._clock, within_s=_SERVERS_END_WITHIN_S)

    def _chief_code(self) -> ExitCode | None:
        """The exit code of the run if the chief has ended it, else None."""
        chief = self._tasks[CHIEF]
        return final(chief.code) if chief.start_at_s is None else None

    # -- failures

    def _look(self) -> None:
        beat = self._tasks[CHIEF].heartbeat()
        if beat and beat.step is not None:
            self._step = beat.step
        for task in self._tasks.values():
            if not task.started or task.start_at_s is not None:
                continue
            code = task.code  # read once: a task may exit between two reads
            if not self._may_end(task, code):
                self._look_at(task, code)

    def _may_end(self, task: TaskHandle, code: int | None) -> bool:
        """Whether the task may exit with this code: the chief ends the run, others may exit a moment before it.

        Once run.json has the end of the run, nobody needs a server that is lost.
        """
        if task.task == CHIEF:
            return final(code) is not None
        if task.task.job in self._plan.serving:
            return code is not None and self._folder.stored().get("status") == "completed"
        return code == ExitCode.DONE

    def _look_at(self, task: TaskHandle, code: int | None) -> None:
        """Restarts a task that was lost.

        Args:
          code: the exit code of the task; None while it runs.

        Raises:
          BudgetSpentError: the restart budget is exhausted.
          ConfigError: the task ended with an error of the configuration: it would end so again.
        """
        if task.task == self._evaluator and final(code) is not None:
            if code != ExitCode.DONE:
                self._continue_without(task, task.how_it_ended)
        elif code == ExitCode.USAGE:
            raise ConfigError(self._last_error(task))
        elif code is not None:
            self._backend.find_lost_machines()  # a chief reports a lost server long before an engine does
            self._failed(task, *self._cause_of_exit(task))
            self._release_chief(task)
        elif cause := self._hangs(task):
            self._backend.find_lost_machines()
            self._failed(task, task.task, cause)
            self._release_chief(task)

    def _release_chief(self, lost: TaskHandle) -> None:
        """The chief may have been silent because it waited for a silent task that is lost now; it needs a moment."""
        chief = self._detectors[CHIEF]
        if chief.may_wait_for([self._detectors[lost.task]]):
            chief.waited(self._clock.now_s())

    def _require_outcome(self, code: ExitCode) -> None:
        """Raises the error of a chief that failed before it could record one: PsrunError, or ConfigError."""
        if code == ExitCode.DONE or is_over(self._folder.stored()):
            return
        error = self._last_error(self._tasks[CHIEF])
        raise ConfigError(error) if code == ExitCode.USAGE else PsrunError(error, task=str(CHIEF))

    def _last_error(self, task: TaskHandle) -> str:
        """The task, and the error message at the end of its log; without one, how it ended."""
        return f"{task.task}: {self._last_message(task) or task.how_it_ended}"

    def _last_message(self, task: TaskHandle) -> str:
        """The error message at the end of a task's log; empty without one."""
        try:
            with self._folder.log(str(task.task)).open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
                _, found, message = log.read().decode(errors="replace").rpartition("psrun: ")
        except OSError:
            return ""
        return message.strip() if found else ""

    def _cause_of_exit(self, task: TaskHandle) -> tuple[Task, str]:
        """The lost task and the cause. A chief that lost another task exits and names it in run.json."""
        if task.task == CHIEF and task.code == ExitCode.RESTART:
            error = self._folder.stored().get("error") or {}
            lost = next((each for each in self._tasks.values() if str(each.task) == error.get("task")), task)
            if lost is not task:
                return lost.task, str(error.get("message")) if lost.running else lost.how_it_ended
        return task.task, task.how_it_ended

    def _continue_without(self, evaluator: TaskHandle, cause: str) -> None:
        """Reports that the evaluator is not restarted; the training does not depend on it."""
        if not self._evaluator_lost:
            self._evaluator_lost = True
            action = f"the training continues without it (log: {evaluator.task}.log)"
            self._reporter.emit("failure", step=self._step, task=str(evaluator.task), cause=cause, action=action)

    def _hangs(self, task: TaskHandle) -> str | None:
        """Why a running task counts as hung; None if it does not."""
        detector = self._detectors[task.task]
        beat = task.heartbeat()
        now_s = self._clock.now_s()
        cause = detector.heartbeat_fault(beat, now_s)
        if cause is not None and task.task == CHIEF and detector.may_wait_for(self._detectors_of_servers()):
            return None  # until the other one is killed
        if cause is None and beat is not None and task.task == CHIEF:
            cause = detector.progress_fault(TrainingStatus.of(beat), now_s)
            cause = cause and cause + self._unreachable()
        return cause

    def _detectors_of_servers(self) -> list[HangDetector]:
        return [each for task, each in self._detectors.items() if task not in (CHIEF, self._evaluator)]

    def _unreachable(self) -> str:
        addresses = self._backend.addresses
        up = answering(addresses, timeout_s=1.0)
        expected = [task for task in addresses if task != self._evaluator]
        silent = [str(task) for task in expected if task not in up]
        return f"; no answer from {', '.join(silent)}" if silent else ""

    def _failed(self, task: TaskHandle, lost: Task, cause: str) -> None:
        """Restarts a task that failed because `lost`, itself or another task, was lost."""
        task.kill()
        is_evaluator = task.task == self._evaluator
        if is_evaluator and not self._policy.allows(task.restarts):
            self._continue_without(task, cause)
            return
        group = self._restarted_with(task)
        interrupts = not is_evaluator or group != [task]  # an evaluator that restarts where it was does not
        may_restart = not interrupts or self._policy.allows(self._num_restarts)
        if is_evaluator and not may_restart:
            self._continue_without(task, cause)
            return
        attempt = any(member.task == CHIEF for member in group)
        self._recoveries.failed(lost, cause, step=self._step, attempt=attempt)
        if not may_restart:
            self._reporter.emit("failure", step=self._step, task=str(lost), cause=cause, action="the run ends")
            raise self._policy.exhausted(lost, cause)
        self._num_restarts += interrupts
        due_s = self._policy.due_s(task.restarts, self._clock.now_s())
        for member in group:
            member.kill()
            member.restarts += 1
            member.start_at_s = due_s
        restarted = [str(member.task) for member in group]
        facts = {"cause": cause, "action": f"restarting {', '.join(restarted)}", "restarted": restarted}
        self._reporter.emit("failure", step=self._step, task=str(lost), **facts)

    def _restarted_with(self, failed: TaskHandle) -> list[TaskHandle]:
        """The tasks to restart if this one has failed, including itself."""
        tasks = list(self._tasks.values())
        together = self._plan.restarted_together
        group = [failed]
        if failed.task.job in together:
            group = [each for each in tasks if each.task.job in together]
        must_move = self._backend.must_move(group)
        return tasks if must_move and not self._is_trained() else group

    def _is_trained(self) -> bool:
        """Whether only the evaluator has something left to do."""
        return self._chief_code() is not None or self._folder.stored().get("status") == "completed"

    def _is_up(self, task: Task) -> bool:
        return self._tasks[task].start_at_s is None and self._tasks[task].heartbeat() is not None

    def _start_due(self) -> None:
        for task in self._tasks.values():
            if task.start_at_s is not None and self._clock.now_s() >= task.start_at_s:
                self._start(task)

    def _start(self, task: TaskHandle) -> None:
        task.start()
        self._detectors[task.task] = HangDetector(self._hang_limits, self._clock.now_s())


class ProgressRelay:
    """Passes new events of metrics.jsonl to the console and to `recoveries`, and shows the state of the tasks."""

    def __init__(
        self,
        events: EventReader,
        sink: ConsoleSink,
        recoveries: Recoveries,
        tasks: Mapping[Task, TaskHandle],
        clock: Clock,
    ) -> None:
        self._events = events
        self._sink = sink
        self._clock = clock
        self._recoveries = recoveries
        self._tasks = tasks
        self._last_step = 0
        self._shown_s = 0.0
        self._meter = UsageMeter()

    def update(self) -> None:
        for event in self._events.read():
            self._relay_event(event)
        if self._clock.now_s() - self._shown_s >= _VIEW_EVERY_S:
            self._shown_s = self._clock.now_s()
            beat = self._tasks[CHIEF].heartbeat()
            progress = beat.training if beat else None
            stale = progress is not None and progress.step < self._last_step  # before the end of the epoch last shown
            rows = [_row(task, self._meter) for task in self._tasks.values()]
            table = task_table(rows) if self._sink.is_terminal else ""
            self._sink.view(table, None if stale else progress)

    def close(self) -> None:
        self.update()
        self._sink.close()

    def _relay_event(self, event: Event) -> None:
        if event.step is not None:
            self._last_step = event.step
        if event.kind == "restored":
            self._recoveries.restored(event.step or 0)
        if event.kind == "epoch":
            self._recoveries.count_repeated(event.data["steps_repeated"])
        self._sink.event(event)


def _row(task: TaskHandle, meter: UsageMeter) -> TaskRow:
    beat = task.heartbeat()
    name = str(task.task)
    memory_bytes, rates = meter.read(name, beat.used if beat else None)
    state = beat.state if beat else "starting"
    if task.start_at_s is not None:
        state = "restarting"
    heard_s = age_s(beat) if beat else None
    return TaskRow(name, state, task.restarts, memory_bytes, rates, heard_s)
