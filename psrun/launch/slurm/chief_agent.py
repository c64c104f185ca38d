"""The keeper of the chief, which leads those of the other tasks: gathers them, tells them when to start again and when
the run is over, and has the job requeued where the run can only go on elsewhere or later; no TensorFlow.
"""

from __future__ import annotations

import os
import shutil
import signal
import time

from rich.console import Console

from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, Task
from psrun.errors import ClusterError, ExitCode, PsrunError, TaskLostError, ended
from psrun.launch.hang_detector import TrainingStatus
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
_FOR_GOOD = (ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE)


def run(run_config: RunConfig, folder: RunFolder, stop: Stop, console: Console, *, started_s: float) -> ExitCode:
    """Runs the whole cluster to the end of its chief.

    Returns:
      The chief's exit code, or that of the signal that ended the run.

    Raises:
      BudgetSpentError: tasks failed more often than they may be restarted.
      ClusterError: not all tasks came, or one failed for good.
      TaskLostError: a node was lost; the job was told to start again where Slurm can.
      Interrupted: a signal ended the run, and the chief has not recorded it.
    """
    cluster = run_config.cluster
    assert isinstance(cluster, choices.Slurm)
    leader = ChiefAgent(run_config, folder, task_identity.task_of(run_config, os.environ)[0], console, started_s)
    signal.signal(signal.SIGUSR1, lambda signum, frame: leader.warn())
    stop.at_once = leader.kill
    stop.defer(cluster.restart.stop_timeout_s + 2 * _OTHERS_END_WITHIN_S, may_insist=False)
    code = ExitCode.FAILED
    try:
        code = leader.lead(stop)
        return code
    except PsrunError as error:
        code = error.exit_code
        raise
    finally:
        leader.close(code)


class ChiefAgent:
    """The chief, what the keepers of the other tasks say, and what has happened to them."""

    def __init__(self, run_config: RunConfig, folder: RunFolder, me: Step, console: Console, started_s: float) -> None:
        assert isinstance(run_config.cluster, choices.Slurm)
        self._cluster, self._folder, self._step, self._console = run_config.cluster, folder, me, console
        self._tasks = task_identity.lineup(run_config)
        self._others = [task for task in self._tasks if task != CHIEF]
        self._end_waits_s = {task: waits_to_end_s(run_config, task) for task in self._others}
        self._meeting = Rendezvous(folder.path, me, CHIEF)
        self._reporter = Reporter([folder.journal], started_s=started_s)  # the chief writes run.json
        self._sink, self._recoveries = ConsoleSink(console), Recoveries(self._reporter)
        self._teller: ProgressRelay | None = None
        self._kept: ManagedTask | None = None
        self._call = ClusterPlan({})
        self._restarts: dict[Task, int] = dict.fromkeys(self._others, 0)
        self._gone: set[Task] = set()
        self._step_done, self._warned, self._wants_requeue = 0, False, False
        self._policy, self._num_restarts, self._given_up = RestartPolicy.of(self._cluster.restart), 0, False

    # -- from the start to the end

    def lead(self, stop: Stop) -> ExitCode:
        """Gathers the others, starts the chief, and returns the exit code of the run once it is over."""
        self._raise_if_given_up()
        self._meeting.remove_earlier()
        found = join.gather(self._meeting, self._step, self._cluster, self._tasks, stop, self._reporter.warn)
        self._call = ClusterPlan(found)
        self._meeting.call(self._call)
        self._kept = kept = ManagedTask(self._cluster, self._folder.path, CHIEF, self._call.by_task())
        self._teller = ProgressRelay(self._folder, self._sink, self._recoveries, {CHIEF: kept.process})
        kept.start()
        while not stop.requested.wait(_ROUND_S) and not self._warned:
            self._meeting.touch()
            self._teller.tell()
            code = kept.process.code
            if code in _FOR_GOOD and code is not None:
                self._ended_for_good(code)
                return ExitCode(code)
            self._raise_if_given_up()
            if not self._look(kept, stop):
                continue
            self._recoveries.look(TrainingStatus.of(kept.process.heartbeat()), self._is_up)
        return self._stop(kept, stop)

    def warn(self) -> None:
        """The time limit is near: the run is to save, and the job to start again."""
        self._warned = True

    def close(self, code: ExitCode) -> None:
        """Ends the chief and, in good order, the others; leaves nothing of the meeting behind."""
        self.kill()
        if self._given_up:  # all that is in the folder is of the next start
            self._meeting.remove()
            if self._teller:
                self._teller.close()
            return
        self._meeting.call(ClusterPlan(self._call.addresses, self._call.attempt, over=int(code)))
        completed = code == ExitCode.DONE
        longest_s = max(self._end_waits_s.values(), default=0.0) if completed else 0.0
        self._await_end(within_s=longest_s + _OTHERS_END_WITHIN_S)
        if self._teller:
            self._teller.close()
        self._folder.record("recoveries", rows=self._recoveries.rows)
        shutil.rmtree(task_files.shared(self._folder.path), ignore_errors=True)
        if self._wants_requeue:
            self._requeue()

    def kill(self) -> None:
        if self._kept:
            self._kept.process.kill()

    def _stop(self, kept: ManagedTask, stop: Stop) -> ExitCode:
        signum = stop.signum if stop.signum is not None else signal.SIGUSR1
        self._reporter.emit("stopping", step=self._step_done, signal=signal.Signals(signum).name)
        kept.end(within_s=self._cluster.restart.stop_timeout_s, meanwhile=self._meeting.touch)
        code = kept.process.code
        if code in _FOR_GOOD and code is not None:  # it was done just then, or could not save
            self._ended_for_good(code)
            return ExitCode(code)
        self._wants_requeue = stop.signum is None
        return ExitCode.RESTART if stop.signum is None else stop.outcome(code, self._folder.stored())

    def _await_end(self, *, within_s: float) -> None:
        """Until the keepers of the others have left, but for those that are gone."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            here = [task for task in self._others if self._meeting.read(task)]
            if all(self._meeting.silent_s(task) > _OTHERS_END_WITHIN_S for task in here):
                return
            self._meeting.touch()
            if self._teller:
                self._teller.tell()
            time.sleep(_ROUND_S)

    def _requeue(self) -> None:
        problem = commands.requeue(self._step.job)
        text = "the job starts again" if problem is None else f"the job cannot start again by itself: {problem}"
        self._console.print(f"Slurm job {self._step.job}: {text}", markup=False, soft_wrap=True)

    # -- what goes wrong

    def _look(self, kept: ManagedTask, stop: Stop) -> bool:
        """Looks at all tasks; returns False where the training had to start again."""
        beat = kept.process.heartbeat()
        if beat and beat.step is not None:
            self._step_done = beat.step
        lost_ps = [task for task in self._others if self._heard(task)]
        cause = kept.fault()
        if cause is None and not lost_ps:
            return True
        if cause is not None and not lost_ps:
            self._failed(CHIEF, cause, attempt=True)
        self._start_again(kept, stop)
        return False

    def _heard(self, task: Task) -> bool:
        """Takes in what a keeper says; returns whether its task was lost and starts again with the chief."""
        card = self._meeting.read(task)
        if card is None or task in self._gone:
            return False
        self._meeting.silent_s(task)
        if card.ended:
            self._ended(task, card)
        times = card.restarts - self._restarts[task]
        self._restarts[task] = card.restarts
        # A parameter server that has no cause any more has started again already, with a chief that was lost with it.
        lost = times > 0 and bool(card.cause)
        if lost:
            self._failed(task, card.cause, attempt=task.job == "ps", times=times)
        return lost and task.job == "ps"

    def _ended(self, task: Task, card: TaskStatus) -> None:
        self._gone.add(task)
        cause, log = ended(card.ended), f"log: {self._folder.log(str(task))}"
        if not self._end_waits_s[task]:
            raise ClusterError(f"{task} on {card.node} {cause} ({log})", task=str(task))
        action = f"the training goes on without it ({log})"
        self._reporter.emit("failure", step=self._step_done, task=str(task), cause=cause, action=action)

    def _failed(self, task: Task, cause: str, *, attempt: bool, times: int = 1) -> None:
        self._recoveries.failed(task, cause, step=self._step_done, attempt=attempt)
        self._num_restarts += times
        may_restart = self._policy.allows(self._num_restarts - 1)
        action = f"restarting {'ps and chief' if attempt else task}" if may_restart else "the run ends"
        restarted = [str(t) for t in self._tasks if t == task or (attempt and t.job in ("ps", "chief"))]
        told = {"cause": cause, "action": action, "restarted": restarted}
        self._reporter.emit("failure", step=self._step_done, task=str(task), **told)
        if not may_restart:
            raise self._policy.exhausted(task, cause)

    def _start_again(self, kept: ManagedTask, stop: Stop) -> None:
        """Starts chief and parameter servers again, once the keepers of all of these are ready for that.

        Raises:
          TaskLostError: one is not heard of: its node was lost.
        """
        due_s = kept.lost()
        self._call = ClusterPlan(self._call.addresses, self._call.attempt + 1)
        self._meeting.call(self._call)
        deadline_s = time.monotonic() + self._cluster.connect_timeout_s
        servers = [task for task in self._others if task.job == "ps"]
        while not stop.requested.wait(_ROUND_S) and not self._warned:
            self._meeting.touch()
            cards = {task: self._meeting.read(task) for task in servers}
            waiting = [task for task, card in cards.items() if card is None or card.attempt < self._call.attempt]
            if not waiting and time.monotonic() >= due_s:
                kept.start()
                return
            self._raise_if_given_up()
            self._raise_if_silent(self._others)
            if waiting and time.monotonic() > deadline_s:
                raise self._lost_node(waiting)

    def _ended_for_good(self, code: int) -> None:
        """Raises TaskLostError where the chief has failed because a node is not there any more."""
        if code == ExitCode.FAILED:
            self._raise_if_silent(self._others)

    def _raise_if_given_up(self) -> None:
        """Raises TaskLostError where Slurm has given up this node, and started the job again on others."""
        if self._meeting.superseded():
            self._given_up = True
            raise TaskLostError(f"the job was started again without {self._step.node}: the chief ends here")

    def _raise_if_silent(self, tasks: list[Task]) -> None:
        silent = [task for task in tasks if self._meeting.silent_s(task) > self._cluster.heartbeat_timeout_s]
        if silent:
            raise self._lost_node(silent)

    def _lost_node(self, tasks: list[Task]) -> TaskLostError:
        self._wants_requeue = self._policy.allows(self._step.restart)
        cards = {task: self._meeting.read(task) for task in tasks}
        where = ", ".join(f"{task} on {card.node}" if card else str(task) for task, card in cards.items())
        return TaskLostError(f"nothing is heard of {where}", task=str(tasks[0]))

    def _is_up(self, task: Task) -> bool:
        if task == CHIEF:
            return self._kept is not None and self._kept.process.heartbeat() is not None
        return task_files.read(self._folder.path, task) is not None
