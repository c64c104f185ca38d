"""The keeper of a task: a small process in each Slurm task that starts the real one and restarts it; no TensorFlow.

This is that of all tasks but the chief, whose keeper leads the others: `psrun.launch.slurm.chief_agent`.
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
_LEADER_LONGER_S = 20.0


def run(run_config: RunConfig, folder: RunFolder, stop: Stop) -> ExitCode:
    """Keeps the task of this process until the run is over.

    Returns:
      0 once the run is over, however it went.

    Raises:
      ConfigError: the run in the folder is over already, or the interface that is named is not there.
      ClusterError: the chief's keeper was not heard of.
      ChiefGoneError: it was, and has not been for `cluster.chief_timeout_s`.
      TaskLostError: the job was started again elsewhere; this node had been given up.
    """
    assert isinstance(run_config.cluster, choices.Slurm)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's warning of the time limit is for the chief
    if run_config.resume is None and folder.stored().get("status") == "completed":
        raise ConfigError([Problem("hydra.run.dir", f"{folder.path} holds a completed run; choose another folder")])
    me, task = task_identity.task_of(run_config, os.environ)
    keeper = TaskAgent(run_config, folder, me, task)
    stop.at_once = keeper.kill
    stop.defer(run_config.cluster.restart.stop_timeout_s + _LEADER_LONGER_S, may_insist=False)
    try:
        return keeper.keep(stop)
    finally:
        keeper.close()


class TaskAgent:
    """One task other than the chief, and what its keeper hears of the run."""

    def __init__(self, run_config: RunConfig, folder: RunFolder, me: Step, task: Task) -> None:
        assert isinstance(run_config.cluster, choices.Slurm)
        self._cluster, self._folder, self._task, self._step = run_config.cluster, folder, task, me
        self._end_waits_s = waits_to_end_s(run_config, task)
        self._meeting = Rendezvous(folder.path, me, task)
        self._kept: ManagedTask | None = None
        self._door: PortReservation | None = None
        self._card = TaskStatus("", me.node, time.time())

    def keep(self, stop: Stop) -> ExitCode:
        """Until the run is over."""
        call = self._await_call(stop)
        if call is None or call.over is not None:
            return ExitCode.DONE
        self._change(attempt=call.attempt)
        self._kept = kept = ManagedTask(self._cluster, self._folder.path, self._task, call.by_task())
        if self._door:
            self._door.close()
        kept.start()
        due_s: float | None = None
        while True:
            self._wait(stop)
            call = self._meeting.called()
            if self._meeting.is_closed or (call is not None and call.over is not None):
                return self._end(kept, call)
            # A chief that starts again would leave its tables behind in parameter servers that do not.
            if self._task.job == "ps" and call is not None and call.attempt > self._card.attempt:
                kept.process.kill()
                self._change(attempt=call.attempt, cause="")
                due_s = 0.0
            if due_s is None:
                due_s = self._look(kept)
            elif time.monotonic() >= due_s:
                due_s = None
                kept.start()

    def kill(self) -> None:
        if self._kept:
            self._kept.process.kill()

    def close(self) -> None:
        """Ends the task's process and reports its end."""
        self.kill()
        if self._door:
            self._door.close()
        self._meeting.leave()

    def _await_call(self, stop: Stop) -> ClusterPlan | None:
        """The plan of the chief's agent once all tasks have joined; None if this process must exit before that."""
        address = ""
        if self._task != EVALUATOR:
            address, self._door = own_address(self._step, self._cluster.interface)
        self._change(address=address)
        # The chief's may wait for the folder first: for its lock, and then for an old chief's heartbeat to end.
        longer_s = _LEADER_LONGER_S + 2 * self._step.patience_s
        deadline_s = time.monotonic() + self._cluster.connect_timeout_s + longer_s
        while not stop.requested.wait(_ROUND_S):
            self._meeting.look_anew()
            call = self._meeting.called()
            if call is not None:
                return call
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"{self._task} on {self._step.node} got no heartbeat of the chief in {self._folder.path}: the run "
                    "folder is not on a shared disk, or differs between tasks; set hydra.run.dir=...",
                    task=str(self._task),
                )
            self._meeting.touch()
        return None

    def _wait(self, stop: Stop) -> None:
        """One round. After a signal the task waits for the chief, which may be saving and ends the run."""
        self._meeting.touch()
        if stop.requested.is_set():
            time.sleep(_ROUND_S)
        else:
            stop.requested.wait(_ROUND_S)
        if self._meeting.superseded():
            raise TaskLostError(f"the job was started again without {self._step.node}: {self._task} ends here")
        if self._meeting.silent_s(CHIEF) > self._cluster.chief_timeout_s:
            message = (
                f"no heartbeat from the chief's agent for {self._cluster.chief_timeout_s:.0f} s; {self._task} exits"
            )
            raise ChiefGoneError(message, task=str(self._task))

    def _look(self, kept: ManagedTask) -> float | None:
        """When a task that was lost is to be started again, as of `time.monotonic`; None where it was not."""
        if self._card.ended is not None:
            return None
        cause = kept.fault()
        if cause is None:
            if kept.process.code is not None:
                self._change(ended=kept.process.code)
            return None
        due_s = kept.lost()
        self._change(cause=cause, restarts=kept.process.restarts)
        return math.inf if self._task.job == "ps" else due_s

    def _end(self, kept: ManagedTask, call: ClusterPlan | None) -> ExitCode:
        """Ends the task: an evaluator has time for the last checkpoint of a run that was completed."""
        if call is not None and call.over == ExitCode.DONE:
            deadline_s = time.monotonic() + self._end_waits_s
            while kept.process.running and time.monotonic() < deadline_s:
                self._meeting.touch()
                time.sleep(_ROUND_S)
        kept.end(within_s=_END_WITHIN_S)
        return ExitCode.DONE

    def _change(self, **values: object) -> None:
        self._card = self._card.but(**values)
        self._meeting.write(self._card)
