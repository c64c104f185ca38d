"""The engine of `cluster=slurm`: the tasks of a run are those of a job step. Does not import TensorFlow.

The supervisor runs once in the job, in the batch script or under `salloc`. It speaks with the processes of the step
through the pipes of `srun`, which work without Slurm's controller: see `psrun.engines.slurm.task_step`. One step for
all tasks, because steps that do not overlap get whole cores each, and steps that do overlap get the same cores and
GPUs.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psrun import process
from psrun.config.topology import CHIEF, Task
from psrun.engines.slurm import allocation, commands
from psrun.engines.slurm.allocation import EXIT_SIGNAL
from psrun.engines.slurm.choice import Slurm
from psrun.errors import ClusterError, ConfigError, ExitCode, Problem, TaskLostError, ended
from psrun.launch.backend import Backend, Launch, TaskHandle
from psrun.launch.losses import RestartPolicy, Silence
from psrun.results import task_files

_POLL_S = 0.05
_LOOK_EVERY_S = 2.0
_ANSWERED_WITHIN_S = 5.0
_ENDED_WITHIN_S = 5.0
_ROOM_WITHIN_S = 15
_CLOCKS_APART_S = 5.0
_SUPERVISOR = "supervisor"


class Step:
    """A job step with a process for each of some tasks."""

    def __init__(self, command: Sequence[str], handles: Mapping[str, StepTask]) -> None:
        self._handles = handles
        for handle in handles.values():
            handle.enter(self)
        pipes = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipes, stdout=pipes, start_new_session=True)
        self._reader = threading.Thread(target=self._read, name="psrun-step", daemon=True)
        self._reader.start()

    def tell(self, **command: Any) -> None:
        """Sends a command to all processes; a step that has ended does not get it."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), json.dumps(command).encode() + b"\n")
        except (OSError, ValueError):  # a closed pipe
            return

    def leave(self) -> None:
        """Lets its processes end, with their tasks."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """Waits for its end; kills what is left of it here."""
        try:
            self._process.wait(_ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        """Passes reports on to the tasks. Those that have moved to another step do not get them."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                report = json.loads(line)
                handle = self._handles[report["task"]]
            except (ValueError, KeyError, TypeError):  # of a site's own prolog
                continue
            if handle.step is self:
                handle.hear(report)
        for handle in self._handles.values():
            handle.is_lost |= handle.step is self


class StepTask(TaskHandle):
    """One task and its current process, which a process of a step starts and restarts.

    Attributes:
      introduction: what that process wrote first; None until then.
      clock_ahead_s: how far the clock of its node is ahead of this one's.
      answer: the last question that it has answered.
      is_lost: whether that process has ended or does not answer.
      silence: how long it has not answered.
    """

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task, folder)
        self.introduction: dict[str, Any] | None = None
        self.clock_ahead_s = 0.0
        self.answer = 0
        self.is_lost = False
        self.silence = Silence(time.monotonic())
        self.step: Step | None = None
        self._report: dict[str, Any] = {}
        self._number = 0

    def enter(self, step: Step) -> None:
        """Makes it a task of `step` that was not started yet."""
        self.step = step
        self.introduction = None
        self.is_lost = False
        self.silence = Silence(time.monotonic())
        self._report = {}
        self._number = 0

    def hear(self, report: dict[str, Any]) -> None:
        """A report of the process of its step."""
        if "answer" in report:
            self.answer = report["answer"]
        elif "number" in report:
            self._report = report
        else:
            self.clock_ahead_s = report.get("time_s", time.time()) - time.time()
            self.introduction = report

    @property
    def node(self) -> str:
        return str((self.introduction or {}).get("node", "?"))

    def start(self) -> None:
        super().start()
        self._number += 1
        self._tell(start=self._number)

    @property
    def started(self) -> bool:
        return self._number > 0

    @property
    def pid(self) -> int | None:
        return self._current.get("pid")

    @property
    def code(self) -> int | None:
        code = self._current.get("code")
        return -signal.SIGKILL if code is None and self.started and self.is_lost else code

    @property
    def how_it_ended(self) -> str:
        is_lost = self.is_lost and self._current.get("code") is None
        return f"was lost with its job step on node {self.node}" if is_lost else ended(self.code)

    def send(self, signum: int) -> None:
        if self.running:
            self._tell(signal=signum if signum == signal.SIGKILL else EXIT_SIGNAL)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        deadline_s = time.monotonic() + _ENDED_WITHIN_S
        while self.running:
            time.sleep(_POLL_S)
            self.is_lost |= time.monotonic() > deadline_s

    def _tell(self, **command: Any) -> None:
        if self.step is not None:
            self.step.tell(task=str(self.task), **command)

    @property
    def _current(self) -> dict[str, Any]:
        return self._report if self._report.get("number") == self._number else {}


class SlurmBackend(Backend):
    """The tasks of a run in a Slurm job.

    Tasks whose nodes do not answer move to other nodes of the job with room for them; without room the chief saves, if
    it can, and the job is requeued.

    Raises:
      ConfigError: the run cannot be started here.
      ClusterError: the step did not start.
    """

    def __init__(self, launch: Launch) -> None:
        cluster = launch.run.cluster
        assert isinstance(cluster, Slurm)
        self._launch = launch
        self._cluster = cluster
        self._folder = launch.folder.path
        self._job = allocation.job_of(launch.run, os.environ)
        self._handles = {task: StepTask(task, self._folder) for task in launch.plan.tasks()}
        self._addresses: dict[Task, str] = {}
        super().__init__(self._handles, self._addresses)
        self._steps: list[Step] = []
        self._numbers = itertools.count(1)
        self._looked_s = time.monotonic()
        self._requeues = False
        launch.stop.ignore_repeated()
        signal.signal(signal.SIGUSR1, lambda number, frame: self._requeue_at_limit())
        task_files.claim(self._folder, _SUPERVISOR, self._job.key)
        try:
            self._start_step([*self._handles], [])
        except BaseException:
            self._end_steps()
            raise
        self._check_clocks()

    def look(self) -> None:
        """Raises TaskLostError if Slurm has given up this node and started the job on others."""
        now_s = time.monotonic()
        for handle in self._handles.values():
            handle.silence.hear(handle.answer, now_s)
            if handle.silence.exceeds(self._cluster.heartbeat_timeout_s, now_s):
                handle.is_lost = True
        if now_s - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now_s
            self._tell(ask=next(self._numbers))
            if task_files.is_replaced(self._folder, _SUPERVISOR, self._job.key):
                here = os.environ.get("SLURMD_NODENAME")
                raise TaskLostError(f"the job was restarted without {here}: the run ends here")

    def find_lost_machines(self) -> None:
        question = next(self._numbers)
        self._tell(ask=question)
        deadline_s = time.monotonic() + _ANSWERED_WITHIN_S
        handles = self._handles.values()
        while silent := [each for each in handles if each.answer != question and not each.is_lost]:
            if time.monotonic() > deadline_s:
                for handle in silent:
                    handle.is_lost = True
            time.sleep(_POLL_S)

    def must_move(self, tasks: Sequence[TaskHandle]) -> bool:
        lost = [task for task, handle in self._handles.items() if handle.is_lost]
        if not any(each.task in lost for each in tasks):
            return False
        nodes = {self._handles[task].node for task in lost}
        gone = nodes - {handle.node for handle in self._handles.values() if not handle.is_lost}
        have_addresses = any(task in self._addresses for task in lost)  # the training needs no other
        room = [f"--immediate={_ROOM_WITHIN_S}", f"--nodes=1-{len(lost)}"]
        try:
            self._start_step(lost, [*room, *([f"--exclude={','.join(sorted(gone))}"] if gone else [])])
        except ClusterError:
            if have_addresses:
                self._leave_nodes(nodes)
            return False
        if CHIEF in lost:  # one on a node that is cut off exits once it sees the new one
            task_files.still_beats(self._folder, CHIEF, within_s=self._cluster.progress_timeout_s)
        return have_addresses

    def close(self, code: ExitCode) -> None:
        self._end_steps()
        if self._requeues and code == ExitCode.RESTART:
            text = "the job is requeued"
            try:
                commands.requeue(self._job.id)
            except ClusterError as error:
                text = str(error)
            self._launch.console.print(f"Slurm job {self._job.id}: {text}", markup=False, soft_wrap=True)

    def _start_step(self, tasks: Sequence[Task], more: Sequence[str]) -> None:
        """Starts tasks in a step, and waits for their addresses. Raises ConfigError and ClusterError."""
        handles = {str(task): self._handles[task] for task in tasks}
        key = f"{self._job.key}.{next(self._numbers)}"
        for name in handles:
            task_files.claim(self._folder, name, key)
        left = [*handles]
        # A step for each component: srun passes on its input to the first one only (Slurm 22.05).
        for options, count in allocation.options(self._job, len(tasks), os.environ):
            names, left = left[:count], left[count:]
            arguments = [str(self._folder), key, self._cluster.interface or "", *names]
            command = process.module_command("psrun.engines.slurm.task_step", *arguments)
            srun = ["srun", "--wait=0", "--kill-on-bad-exit=0", "--no-kill", "--exact", *more, *options]
            self._steps.append(Step([*srun, *command], {name: handles[name] for name in names}))
        self._await_introductions(handles)
        problems: dict[str, Problem] = {}
        for task in tasks:
            introduction = self._handles[task].introduction or {}
            if "problem" in introduction:
                where, message = introduction["problem"]
                problems.setdefault(where, Problem(where, message))
            elif task in self._launch.plan.addressed():
                self._addresses[task] = introduction["address"]
        if problems:
            raise ConfigError(problems.values())
        self._tell(addresses={str(task): address for task, address in self._addresses.items()})

    def _await_introductions(self, handles: Mapping[str, StepTask]) -> None:
        limit_s = self._cluster.connect_timeout_s
        deadline_s = time.monotonic() + limit_s
        while waiting := [name for name, handle in handles.items() if handle.introduction is None]:
            self._launch.stop.raise_if_requested()
            is_over = any(handle.is_lost for handle in handles.values())
            if is_over or time.monotonic() > deadline_s:
                problem = "srun has failed for" if is_over else f"not started in {limit_s:.0f} s (connect_timeout_s):"
                raise ClusterError(f"{problem} {', '.join(waiting)}", task=waiting[0])
            time.sleep(_POLL_S)

    def _check_clocks(self) -> None:
        ahead_s = {handle.node: handle.clock_ahead_s for handle in self._handles.values()}
        apart = [f"{name} by {value:+.0f} s" for name, value in ahead_s.items() if abs(value) > _CLOCKS_APART_S]
        if apart:
            self._launch.reporter.warn(
                f"the clocks of nodes differ from the clock of the supervisor's node by more than "
                f"{_CLOCKS_APART_S:.0f} s: {', '.join(apart)}; reported times and ages are off by as much"
            )

    def _leave_nodes(self, nodes: set[str]) -> None:
        """Ends the run so that the job can be requeued. Raises TaskLostError if the budget does not allow it."""
        message = f"node {', '.join(sorted(nodes))} is lost, and the job has no room for its tasks on other nodes"
        if not RestartPolicy.of(self._cluster.restart).allows(self._job.restart):
            raise TaskLostError(f"{message}; all requeues (cluster.restart.budget) are spent")
        self._launch.reporter.warn(f"{message}: it is requeued")
        self._requeue(f"node {', '.join(sorted(nodes))} is lost")

    def _requeue_at_limit(self) -> None:
        """Obeys the signal before the time limit."""
        reason = f"the time limit of Slurm job {self._job.id} is near"
        beat = self._handles[CHIEF].heartbeat()
        if beat is None or not beat.step:
            reason += ", before the first step; set slurm.time (sbatch --time) higher"
        self._requeue(reason)

    def _requeue(self, reason: str) -> None:
        """Lets the chief save and the run end; then the job is requeued."""
        self._requeues = True
        self._launch.stop.follow(signal.SIGUSR1, reason)

    def _tell(self, **command: Any) -> None:
        for step in self._steps:
            step.tell(**command)

    def _end_steps(self) -> None:
        for step in self._steps:
            step.leave()
        for step in self._steps:
            step.end()
