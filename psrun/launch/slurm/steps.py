"""The engine of `cluster=slurm`: a job step on a node of the job for each task. Does not import TensorFlow.

The supervisor runs once in the job, in the batch script or under `salloc`. It speaks with the process of each step
through the pipes of its `srun`, which Slurm's controller is not needed for: see `psrun.launch.slurm.task_step`.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from psrun import process
from psrun.config import choices
from psrun.config.topology import CHIEF, Task
from psrun.errors import ClusterError, ConfigError, ExitCode, Problem, TaskLostError, ended
from psrun.launch.backend import Backend, Launch, TaskHandle
from psrun.launch.restart_policy import RestartPolicy
from psrun.launch.slurm import allocation, commands
from psrun.launch.slurm.allocation import EXIT_SIGNAL, Node
from psrun.results import task_files

_POLL_S = 0.05
_LOOK_EVERY_S = 2.0
_ANSWERED_WITHIN_S = 5.0
_ENDED_WITHIN_S = 5.0
_CLOCKS_APART_S = 5.0
_SUPERVISOR = "supervisor"


class Step:
    """A job step with the process that runs a task.

    Attributes:
      introduction: what it wrote first; None until then.
      clock_ahead_s: how far the clock of its node is ahead of this one's.
      report: the state of the task's process, as it reported last.
      answer: the last question that it has answered.
      is_over: whether it has ended.
    """

    def __init__(self, task: Task, node: Node, folder: Path, key: str, interface: str | None) -> None:
        self.node = node
        self.introduction: dict[str, Any] | None = None
        self.clock_ahead_s = 0.0
        self.report: dict[str, Any] = {}
        self.answer = -1
        self.is_over = False
        task_files.claim(folder, str(task), key)
        # Without --overlap, which would give all tasks of a node the same cores.
        options = ["--exact", "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", f"--job-name={task}", *node.options]
        step = process.module_command("psrun.launch.slurm.task_step", str(task), str(folder), key, interface or "")
        self._process = subprocess.Popen(
            ["srun", *options, *step], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        threading.Thread(target=self._read, name=f"psrun-{task}", daemon=True).start()

    def tell(self, **command: Any) -> None:
        """Sends a command; a step that has ended does not get it."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), json.dumps(command).encode() + b"\n")
        except (OSError, ValueError):  # a closed pipe
            return

    def leave(self) -> None:
        """Lets it end, with its task."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self, *, within_s: float = 0.0) -> None:
        """Waits for its end; kills what is left of it here."""
        self.leave()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.is_over = True

    @property
    def how_it_ended(self) -> str:
        """Not reliable: srun returns 0 if the node was lost (Slurm 22.05)."""
        return ended(self._process.poll())

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                record = json.loads(line)
            except ValueError:  # of a site's own prolog
                continue
            if "answer" in record:
                self.answer = record["answer"]
            elif "number" in record:
                self.report = record
            elif self.introduction is None:
                self.clock_ahead_s = record.get("time_s", time.time()) - time.time()
                self.introduction = record
        self.is_over = True


class StepTask(TaskHandle):
    """One task and its current process, in a step that remains when the process restarts."""

    def __init__(self, task: Task, folder: Path, addresses: Mapping[Task, str]) -> None:
        super().__init__(task, folder)
        self.step: Step | None = None
        self._addresses = addresses
        self._number = 0

    def start(self) -> None:
        super().start()
        assert self.step is not None
        self._number += 1
        addresses = {str(task): address for task, address in self._addresses.items()}
        self.step.tell(start=addresses, number=self._number)

    @property
    def started(self) -> bool:
        return self._number > 0

    @property
    def pid(self) -> int | None:
        return self._report.get("pid")

    @property
    def code(self) -> int | None:
        code = self._report.get("code")
        is_lost = self.started and code is None and self.step is not None and self.step.is_over
        return -signal.SIGKILL if is_lost else code

    @property
    def how_it_ended(self) -> str:
        if self._report.get("code") is None and self.step is not None and self.step.is_over:
            return f"was lost with its job step on node {self.step.node.name}"
        return ended(self.code)

    def send(self, signum: int) -> None:
        if self.step is not None and self.running:
            self.step.tell(signal=signum if signum == signal.SIGKILL else EXIT_SIGNAL)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        deadline_s = time.monotonic() + _ENDED_WITHIN_S
        while self.running:
            time.sleep(_POLL_S)
            if self.step is not None and time.monotonic() > deadline_s:
                self.step.end()

    @property
    def _report(self) -> dict[str, Any]:
        report = self.step.report if self.step is not None else {}
        return report if report.get("number") == self._number else {}


class SlurmBackend(Backend):
    """The steps of a run in a Slurm job.

    A node is lost when none of its steps answers. Its tasks move to nodes with room for them; without room the chief
    saves, if it can, and the job is requeued.

    Raises:
      ConfigError: the run cannot be started here.
      ClusterError: a step did not start.
    """

    def __init__(self, launch: Launch) -> None:
        cluster = launch.run.cluster
        assert isinstance(cluster, choices.Slurm)
        self._launch = launch
        self._cluster = cluster
        self._folder = launch.folder.path
        self._job = allocation.job_of(launch.run, os.environ)
        self._nodes = allocation.nodes_of(os.environ)
        self._requeues = False
        self._numbers = itertools.count(1)
        self._looked_s = time.monotonic()
        self._addresses: dict[Task, str] = {}
        self._handles = {task: StepTask(task, self._folder, self._addresses) for task in launch.plan.tasks()}
        super().__init__(self._handles, self._addresses)
        launch.stop.may_insist = False  # Slurm repeats its signals
        signal.signal(signal.SIGUSR1, lambda number, frame: self._requeue())  # the time limit is near
        task_files.claim(self._folder, _SUPERVISOR, self._job.key)
        where = allocation.placement([*self._handles], self._nodes)
        assert where is not None  # `job_of` has counted
        try:
            self._start_steps(where)
        except BaseException:
            self._end_steps()
            raise
        self._check_clocks()

    def look(self) -> None:
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            if not task_files.is_held(self._folder, _SUPERVISOR, self._job.key):
                here = os.environ.get("SLURMD_NODENAME")
                raise TaskLostError(f"the job was restarted without {here}: the run ends here")

    def find_lost_machines(self) -> None:
        question = next(self._numbers)
        asked = [step for step in self._steps() if not step.is_over]
        for step in asked:
            step.tell(ask=question)
        deadline_s = time.monotonic() + _ANSWERED_WITHIN_S
        while silent := [step for step in asked if step.answer != question and not step.is_over]:
            if time.monotonic() > deadline_s:
                for step in silent:
                    step.end()
            time.sleep(_POLL_S)

    def must_move(self, tasks: Sequence[TaskHandle]) -> bool:
        lost = [task for task, handle in self._handles.items() if handle.step is not None and handle.step.is_over]
        if not any(each.task in lost for each in tasks):
            return False
        used = [step.node.name for step in self._steps() if not step.is_over]
        gone = {step.node.name for step in self._steps()} - set(used)
        self._nodes = [node for node in self._nodes if node.name not in gone]
        free = [replace(node, num_tasks=node.num_tasks - used.count(node.name)) for node in self._nodes]
        where = allocation.placement(lost, free)
        if where is None:
            self._give_up_nodes(gone)
            return False
        try:
            self._start_steps(where)
        except ClusterError as error:
            self._requeues = self._may_requeue
            raise TaskLostError(str(error), task=error.task) from error
        if CHIEF in lost:  # one on a node that is cut off exits once it sees the new one
            task_files.still_beats(self._folder, CHIEF, within_s=self._cluster.progress_timeout_s)
        return True

    def close(self, code: ExitCode) -> None:
        self._end_steps()
        if self._requeues and code == ExitCode.RESTART:
            problem = commands.requeue(self._job.id)
            text = "the job is requeued" if problem is None else f"the job cannot be requeued: {problem}"
            self._launch.console.print(f"Slurm job {self._job.id}: {text}", markup=False, soft_wrap=True)

    def _steps(self) -> list[Step]:
        return [handle.step for handle in self._handles.values() if handle.step is not None]

    def _start_steps(self, where: Mapping[Task, Node]) -> None:
        """Starts steps and waits for their addresses. Raises ConfigError and ClusterError."""
        started: dict[Task, Step] = {}
        for task, node in where.items():
            key = f"{self._job.key}.{next(self._numbers)}"
            started[task] = Step(task, node, self._folder, key, self._cluster.interface)
            self._handles[task].step = started[task]
        limit_s = self._cluster.connect_timeout_s
        deadline_s = time.monotonic() + limit_s
        while waiting := [task for task, step in started.items() if step.introduction is None]:
            self._launch.stop.raise_if_requested()
            over = [task for task in waiting if started[task].is_over]
            late = time.monotonic() > deadline_s
            if over or late:
                names = ", ".join(f"{task} on {started[task].node.name}" for task in over or waiting)
                problem = f"not started within {limit_s:.0f} s (connect_timeout_s)" if late else "srun has failed for"
                raise ClusterError(f"{problem}: {names}", task=str(waiting[0]))
            time.sleep(_POLL_S)
        problems: dict[str, Problem] = {}
        for task, step in started.items():
            assert step.introduction is not None
            if "problem" in step.introduction:
                key, message = step.introduction["problem"]
                problems.setdefault(key, Problem(key, message))
            elif task in self._launch.plan.addressed():
                self._addresses[task] = step.introduction["address"]
        if problems:
            raise ConfigError(problems.values())

    def _check_clocks(self) -> None:
        ahead_s = {step.node.name: step.clock_ahead_s for step in self._steps()}
        apart = [f"{name} by {value:+.0f} s" for name, value in ahead_s.items() if abs(value) > _CLOCKS_APART_S]
        if apart:
            self._launch.reporter.warn(
                f"the clocks of nodes differ from the clock of the supervisor's node by more than "
                f"{_CLOCKS_APART_S:.0f} s: {', '.join(apart)}; reported times and ages are off by as much"
            )

    def _give_up_nodes(self, gone: set[str]) -> None:
        """Ends the run so that the job can be requeued. Raises TaskLostError if the budget does not allow it."""
        message = f"node {', '.join(sorted(gone))} is lost, and the job has no room for its tasks on other nodes"
        if not self._may_requeue:
            raise TaskLostError(f"{message}; all requeues (cluster.restart.budget) are spent")
        self._launch.reporter.warn(f"{message}: it is requeued")
        self._requeue()

    @property
    def _may_requeue(self) -> bool:
        return RestartPolicy.of(self._cluster.restart).allows(self._job.restart)

    def _requeue(self) -> None:
        """Lets the chief save and the run end; then the job is requeued."""
        self._requeues = True
        self._launch.stop.follow(signal.SIGUSR1)

    def _end_steps(self) -> None:
        for step in self._steps():
            step.leave()
        for step in self._steps():
            step.end(within_s=_ENDED_WITHIN_S)
