"""The agent of a task: the process that Slurm starts, which starts and restarts the task. Does not import TensorFlow.

This is the agent of all tasks but the chief; see `psrun.launch.slurm.chief_agent`.
"""

from __future__ import annotations

import math
import os
import signal
import time

from psrun.cluster.probe import PortReservation
from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, EVALUATOR, Task
from psrun.errors import ChiefGoneError, ClusterError, ConfigError, ExitCode, Problem, TaskLostError
from psrun.launch.slurm import task_identity
from psrun.launch.slurm.managed_task import ManagedTask
from psrun.launch.slurm.rendezvous import ClusterPlan, Rendezvous, TaskStatus, own_address, waits_to_end_s
from psrun.launch.slurm.task_identity import Step
from psrun.process import Stop
from psrun.results.run_folder import RunFolder

_ROUND_S = 0.25
_END_WITHIN_S = 5.0
_CHIEF_AGENT_LONGER_S = 20.0


def run(run_config: RunConfig, folder: RunFolder, stop: Stop) -> ExitCode:
    """Runs the task of this process until the run is over.

    Returns:
      0 once the run is over, whatever its result.

    Raises:
      ConfigError: the run in the folder is over already, or the network interface does not exist.
      ClusterError: there was no heartbeat from the chief's agent.
      ChiefGoneError: there has been none for `cluster.chief_timeout_s`.
      TaskLostError: the job was restarted on other nodes; Slurm has given up this one.
    """
    assert isinstance(run_config.cluster, choices.Slurm)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's warning of the time limit is for the chief
    if run_config.resume is None and folder.stored().get("status") == "completed":
        raise ConfigError([Problem("hydra.run.dir", f"{folder.path} holds a completed run; choose another folder")])
    me, task = task_identity.task_of(run_config, os.environ)
    agent = TaskAgent(run_config, folder, me, task)
    stop.at_once = agent.kill
    stop.defer(run_config.cluster.restart.stop_timeout_s + _CHIEF_AGENT_LONGER_S, may_insist=False)
    try:
        return agent.manage(stop)
    finally:
        agent.close()


class TaskAgent:
    """One task other than the chief, and the plan that it follows."""

    def __init__(self, run_config: RunConfig, folder: RunFolder, me: Step, task: Task) -> None:
        assert isinstance(run_config.cluster, choices.Slurm)
        self._cluster, self._folder, self._task, self._step = run_config.cluster, folder, task, me
        self._end_waits_s = waits_to_end_s(run_config, task)
        self._rendezvous = Rendezvous(folder.path, me, task)
        self._managed: ManagedTask | None = None
        self._reservation: PortReservation | None = None
        self._status = TaskStatus("", me.node, time.time())

    def manage(self, stop: Stop) -> ExitCode:
        """Joins the run and restarts the task as planned, until the run is over."""
        plan = self._await_plan(stop)
        if plan is None or plan.over is not None:
            return ExitCode.DONE
        self._change(attempt=plan.attempt)
        self._managed = managed = ManagedTask(self._cluster, self._folder.path, self._task, plan.by_task())
        if self._reservation:
            self._reservation.close()
        managed.start()
        due_s: float | None = None
        while True:
            self._wait(stop)
            plan = self._rendezvous.plan()
            if self._rendezvous.is_closed or (plan is not None and plan.over is not None):
                return self._end(managed, plan)
            # A restarted chief would find tables of its predecessor in parameter servers that were not restarted.
            if self._task.job == "ps" and plan is not None and plan.attempt > self._status.attempt:
                managed.process.kill()
                self._change(attempt=plan.attempt, cause="")
                due_s = 0.0
            if due_s is None:
                due_s = self._look(managed)
            elif time.monotonic() >= due_s:
                due_s = None
                managed.start()

    def kill(self) -> None:
        if self._managed:
            self._managed.process.kill()

    def close(self) -> None:
        """Ends the task's process and reports its end."""
        self.kill()
        if self._reservation:
            self._reservation.close()
        self._rendezvous.leave()

    def _await_plan(self, stop: Stop) -> ClusterPlan | None:
        """The plan of the chief's agent once all tasks have joined; None if this process must exit before that."""
        address = ""
        if self._task != EVALUATOR:
            address, self._reservation = own_address(self._step, self._cluster.interface)
        self._change(address=address)
        # The chief's agent may wait for the folder's lock first, and then for an earlier chief's heartbeat to stop.
        longer_s = _CHIEF_AGENT_LONGER_S + 2 * self._step.patience_s
        deadline_s = time.monotonic() + self._cluster.connect_timeout_s + longer_s
        while not stop.requested.wait(_ROUND_S):
            self._rendezvous.refresh()
            plan = self._rendezvous.plan()
            if plan is not None:
                return plan
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"{self._task} on {self._step.node} found no heartbeat of the chief in {self._folder.path}: the "
                    "run folder is not on a shared disk, or differs between tasks; set hydra.run.dir=...",
                    task=str(self._task),
                )
            self._rendezvous.touch()
        return None

    def _wait(self, stop: Stop) -> None:
        """Waits one round. After a signal the task continues: the chief may be saving, and ends the run."""
        self._rendezvous.touch()
        if stop.requested.is_set():
            time.sleep(_ROUND_S)
        else:
            stop.requested.wait(_ROUND_S)
        if self._rendezvous.superseded():
            raise TaskLostError(f"the job was restarted without {self._step.node}: {self._task} exits here")
        if self._rendezvous.silent_s(CHIEF) > self._cluster.chief_timeout_s:
            message = (
                f"no heartbeat from the chief's agent for {self._cluster.chief_timeout_s:.0f} s; {self._task} exits"
            )
            raise ChiefGoneError(message, task=str(self._task))

    def _look(self, managed: ManagedTask) -> float | None:
        """Returns when a lost task is due to restart, as of `time.monotonic`; None if it is not lost."""
        if self._status.ended is not None:
            return None
        cause = managed.fault()
        if cause is None:
            if managed.process.code is not None:
                self._change(ended=managed.process.code)
            return None
        due_s = managed.lost()
        self._change(cause=cause, restarts=managed.process.restarts)
        return math.inf if self._task.job == "ps" else due_s

    def _end(self, managed: ManagedTask, plan: ClusterPlan | None) -> ExitCode:
        """Ends the task. An evaluator has time for the last checkpoint of a completed run."""
        if plan is not None and plan.over == ExitCode.DONE:
            deadline_s = time.monotonic() + self._end_waits_s
            while managed.process.running and time.monotonic() < deadline_s:
                self._rendezvous.touch()
                time.sleep(_ROUND_S)
        managed.end(within_s=_END_WITHIN_S)
        return ExitCode.DONE

    def _change(self, **values: object) -> None:
        self._status = self._status.but(**values)
        self._rendezvous.write(self._status)
