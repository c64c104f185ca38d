"""The agent of the chief, which coordinates the agents of the other tasks. Does not import TensorFlow.

It waits for them to join, publishes when tasks restart and when the run is over, and requeues the job if the run can
only continue on other nodes or after the time limit.
"""

from __future__ import annotations

import os
import signal
import time

from rich.console import Console

from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, Task
from psrun.errors import ClusterError, ExitCode, PsrunError, TaskLostError, ended, final
from psrun.launch.hang_detector import HangDetector, TrainingStatus
from psrun.launch.progress_relay import ProgressRelay
from psrun.launch.recoveries import Recoveries
from psrun.launch.restart_policy import RestartPolicy
from psrun.launch.slurm import commands, join, task_identity
from psrun.launch.slurm.managed_task import ManagedTask
from psrun.launch.slurm.rendezvous import ClusterPlan, Rendezvous, TaskStatus, waits_to_end_s
from psrun.launch.slurm.task_identity import Step
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.console import ConsoleSink
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder

_ROUND_S = 0.25
_OTHERS_END_WITHIN_S = 10.0


def run(run_config: RunConfig, folder: RunFolder, stop: Stop, console: Console, *, started_s: float) -> ExitCode:
    """Runs the whole cluster to the end of its chief.

    Returns:
      The chief's exit code, or that of the signal that ended the run.

    Raises:
      BudgetSpentError: tasks failed more often than they may be restarted.
      ClusterError: not all tasks joined, or one failed for good.
      TaskLostError: a node was lost; the job is requeued if Slurm allows it.
      Interrupted: a signal ended the run, and the chief did not record it.
    """
    cluster = run_config.cluster
    assert isinstance(cluster, choices.Slurm)
    agent = ChiefAgent(run_config, folder, task_identity.task_of(run_config, os.environ)[0], console, started_s)
    signal.signal(signal.SIGUSR1, lambda signum, frame: agent.warn())
    stop.at_once = agent.kill
    stop.defer(cluster.restart.stop_timeout_s + 2 * _OTHERS_END_WITHIN_S, may_insist=False)
    code = ExitCode.FAILED
    try:
        code = agent.supervise(stop)
        return code
    except PsrunError as error:
        code = error.exit_code
        raise
    finally:
        agent.close(code)


class ChiefAgent:
    """The chief's process, and the states of the other tasks as their agents report them."""

    def __init__(self, run_config: RunConfig, folder: RunFolder, me: Step, console: Console, started_s: float) -> None:
        assert isinstance(run_config.cluster, choices.Slurm)
        self._cluster, self._folder, self._step, self._console = run_config.cluster, folder, me, console
        self._tasks = task_identity.all_tasks(run_config)
        self._others = [task for task in self._tasks if task != CHIEF]
        self._end_waits_s = {task: waits_to_end_s(run_config, task) for task in self._others}
        self._rendezvous = Rendezvous(folder.path, me, CHIEF)
        self._reporter = Reporter([folder.journal], started_s=started_s)  # the chief writes run.json
        self._sink, self._recoveries = ConsoleSink(console), Recoveries(self._reporter)
        self._relay: ProgressRelay | None = None
        self._managed: ManagedTask | None = None
        self._plan = ClusterPlan({})
        self._restarts: dict[Task, int] = dict.fromkeys(self._others, 0)
        self._heard: dict[Task, HangDetector] = {}
        self._gone: set[Task] = set()
        self._step_done, self._warned, self._wants_requeue = 0, False, False
        self._policy, self._num_restarts, self._given_up = RestartPolicy.of(self._cluster.restart), 0, False

    # -- from the start to the end

    def supervise(self, stop: Stop) -> ExitCode:
        """Waits for the other tasks, starts the chief, and returns the exit code of the run once it is over."""
        self._raise_if_given_up()
        self._rendezvous.remove_earlier()
        statuses = join.gather(self._rendezvous, self._step, self._cluster, self._tasks, stop, self._reporter.warn)
        self._plan = ClusterPlan(statuses)
        self._rendezvous.publish(self._plan)
        self._managed = managed = ManagedTask(self._cluster, self._folder.path, CHIEF, self._plan.by_task())
        self._relay = ProgressRelay(self._folder, self._sink, self._recoveries, {CHIEF: managed.process})
        managed.start()
        while not stop.requested.wait(_ROUND_S) and not self._warned:
            self._rendezvous.touch()
            self._relay.update()
            code = final(managed.process.code)
            if code is not None:
                self._ended_for_good(code)
                return code
            self._raise_if_given_up()
            if not self._look(managed, stop):
                continue
            self._recoveries.look(TrainingStatus.of(managed.process.heartbeat()), self._is_up)
        return self._stop(managed, stop)

    def warn(self) -> None:
        """The time limit is near: the run saves and the job is requeued."""
        self._warned = True

    def close(self, code: ExitCode) -> None:
        """Ends the chief, then the other tasks, and removes the files of the rendezvous."""
        self.kill()
        if self._given_up:  # the folder belongs to the next start of the job
            self._rendezvous.remove()
            if self._relay:
                self._relay.close()
            return
        self._rendezvous.publish(ClusterPlan(self._plan.addresses, self._plan.attempt, over=int(code)))
        completed = code == ExitCode.DONE
        longest_s = max(self._end_waits_s.values(), default=0.0) if completed else 0.0
        self._await_end(within_s=longest_s + _OTHERS_END_WITHIN_S)
        if self._relay:
            self._relay.close()
        self._folder.record("recoveries", rows=self._recoveries.rows)
        self._rendezvous.remove_all()
        if self._wants_requeue:
            self._requeue()

    def kill(self) -> None:
        if self._managed:
            self._managed.process.kill()

    def _stop(self, managed: ManagedTask, stop: Stop) -> ExitCode:
        signum = stop.signum if stop.signum is not None else signal.SIGUSR1
        self._reporter.emit("stopping", step=self._step_done, signal=signal.Signals(signum).name)
        managed.end(within_s=self._cluster.restart.stop_timeout_s, meanwhile=self._rendezvous.touch)
        code = managed.process.code
        if (last := final(code)) is not None:  # it ended at that moment, or could not save
            self._ended_for_good(last)
            return last
        self._wants_requeue = stop.signum is None
        return ExitCode.RESTART if stop.signum is None else stop.outcome(code, self._folder.stored())

    def _await_end(self, *, within_s: float) -> None:
        """Waits until the agents of the other tasks have left or are silent."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            here = [task for task in self._others if self._rendezvous.read(task)]
            if all(self._rendezvous.silent_s(task) > _OTHERS_END_WITHIN_S for task in here):
                return
            self._rendezvous.touch()
            if self._relay:
                self._relay.update()
            time.sleep(_ROUND_S)

    def _requeue(self) -> None:
        problem = commands.requeue(self._step.job)
        text = "the job is requeued" if problem is None else f"the job cannot be requeued: {problem}"
        self._console.print(f"Slurm job {self._step.job}: {text}", markup=False, soft_wrap=True)

    # -- what goes wrong

    def _look(self, managed: ManagedTask, stop: Stop) -> bool:
        """Checks all tasks; returns False if the training had to restart."""
        beat = managed.process.heartbeat()
        if beat and beat.step is not None:
            self._step_done = beat.step
        lost_ps = [task for task in self._others if self._read_status(task)]
        cause = managed.fault(self._servers(managed.silent_s))
        if cause is None and not lost_ps:
            return True
        if cause is not None and not lost_ps:
            self._failed(CHIEF, cause, attempt=True)
        self._start_again(managed, stop)
        return False

    def _read_status(self, task: Task) -> bool:
        """Reads the status of a task; returns whether it was lost and restarts together with the chief."""
        status = self._rendezvous.read(task)
        if status is None or task in self._gone:
            return False
        self._rendezvous.silent_s(task)
        if status.ended:
            self._ended(task, status)
        times = status.restarts - self._restarts[task]
        self._restarts[task] = status.restarts
        # A parameter server without a cause has already restarted, with a chief that was lost at the same time.
        lost = times > 0 and bool(status.cause)
        if lost:
            self._failed(task, status.cause, attempt=task.job == "ps", times=times)
            if self._managed:
                self._managed.waited()
        return lost and task.job == "ps"

    def _servers(self, chief_silent_s: float) -> list[HangDetector]:
        """The tasks that the chief may wait for. They are looked at while it is silent only: disks may be slow."""
        if chief_silent_s < self._cluster.heartbeat_timeout_s / 4:
            self._heard.clear()
            return []
        now_s = time.monotonic()
        for task in self._others:
            if task.job in ("ps", "worker"):
                detector = self._heard.setdefault(task, HangDetector(self._cluster, now_s))
                detector.heartbeat_fault(task_files.read(self._folder.path, task), now_s)
        return [*self._heard.values()]

    def _ended(self, task: Task, status: TaskStatus) -> None:
        self._gone.add(task)
        cause, log = ended(status.ended), f"log: {self._folder.log(str(task))}"
        if not self._end_waits_s[task]:
            raise ClusterError(f"{task} on {status.node} {cause} ({log})", task=str(task))
        action = f"the training continues without it ({log})"
        self._reporter.emit("failure", step=self._step_done, task=str(task), cause=cause, action=action)

    def _failed(self, task: Task, cause: str, *, attempt: bool, times: int = 1) -> None:
        self._recoveries.failed(task, cause, step=self._step_done, attempt=attempt)
        self._num_restarts += times
        may_restart = self._policy.allows(self._num_restarts - 1)
        action = f"restarting {'ps and chief' if attempt else task}" if may_restart else "the run ends"
        restarted = [str(t) for t in self._tasks if t == task or (attempt and t.job in ("ps", "chief"))]
        facts = {"cause": cause, "action": action, "restarted": restarted}
        self._reporter.emit("failure", step=self._step_done, task=str(task), **facts)
        if not may_restart:
            raise self._policy.exhausted(task, cause)

    def _start_again(self, managed: ManagedTask, stop: Stop) -> None:
        """Restarts chief and parameter servers, once the agents of all of them are ready.

        Raises:
          TaskLostError: there is no heartbeat from an agent: its node was lost.
        """
        due_s = managed.lost()
        self._plan = ClusterPlan(self._plan.addresses, self._plan.attempt + 1)
        self._rendezvous.publish(self._plan)
        deadline_s = time.monotonic() + self._cluster.connect_timeout_s
        servers = [task for task in self._others if task.job == "ps"]
        while not stop.requested.wait(_ROUND_S) and not self._warned:
            self._rendezvous.touch()
            statuses = {task: self._rendezvous.read(task) for task in servers}
            attempt = self._plan.attempt
            waiting = [task for task, status in statuses.items() if status is None or status.attempt < attempt]
            if not waiting and time.monotonic() >= due_s:
                managed.start()
                return
            self._raise_if_given_up()
            self._raise_if_silent(self._others)
            if waiting and time.monotonic() > deadline_s:
                raise self._lost_node(waiting)

    def _ended_for_good(self, code: ExitCode) -> None:
        """Raises TaskLostError if the chief has failed because a node was lost."""
        if code == ExitCode.FAILED:
            self._raise_if_silent(self._others)

    def _raise_if_given_up(self) -> None:
        """Raises TaskLostError if Slurm has given up this node and restarted the job on others."""
        if self._rendezvous.superseded():
            self._given_up = True
            raise TaskLostError(f"the job was restarted without {self._step.node}: the chief exits here")

    def _raise_if_silent(self, tasks: list[Task]) -> None:
        silent = [task for task in tasks if self._rendezvous.silent_s(task) > self._cluster.heartbeat_timeout_s]
        if silent:
            raise self._lost_node(silent)

    def _lost_node(self, tasks: list[Task]) -> TaskLostError:
        self._wants_requeue = self._policy.allows(self._step.restart)
        statuses = {task: self._rendezvous.read(task) for task in tasks}
        where = ", ".join(f"{task} on {status.node}" if status else str(task) for task, status in statuses.items())
        return TaskLostError(f"no heartbeat from {where}", task=str(tasks[0]))

    def _is_up(self, task: Task) -> bool:
        if task == CHIEF:
            return self._managed is not None and self._managed.process.heartbeat() is not None
        return task_files.read(self._folder.path, task) is not None
