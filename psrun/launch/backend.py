"""What an engine offers the supervisor of a run, and the engine of this machine. Does not import TensorFlow."""

from __future__ import annotations

import abc
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import portpicker
from rich.console import Console

from psrun.config import topology
from psrun.config.run_config import RunConfig
from psrun.config.topology import Task, tf_config
from psrun.errors import ExitCode, ended
from psrun.launch.child_processes import ChildProcess, ForkServer, StartProcess, start_alone
from psrun.process import SUPERVISOR_PID, Stop
from psrun.results import task_files
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder


@dataclass(frozen=True)
class TaskPlan:
    """The tasks of a run, and how losses and the end of the run concern them.

    Attributes:
      jobs: number of tasks of each job with addresses, in the order of their start.
      restarted_together: jobs whose tasks all restart if one of them is lost.
      serving: jobs that are signaled when the run is over; the others exit without a signal.
      evaluator: the task that evaluates checkpoints, if any; a worker with an address, or a task without one.
    """

    jobs: dict[str, int]
    restarted_together: tuple[str, ...]
    serving: tuple[str, ...]
    evaluator: Task | None

    @classmethod
    def of(cls, run: RunConfig) -> TaskPlan:
        """The plan of a supervised run."""
        num_tasks = run.num_tasks
        if run.cluster.has_synchronous_workers:  # the chief is one of the workers
            return cls({"worker": num_tasks["worker"] - 1, "chief": 1}, ("worker", "chief"), (), None)
        # The chief first: it prepares its data while the servers start.
        jobs = {job: num_tasks[job] for job in ("chief", "ps", "worker")}
        serving = ("ps", "worker", "evaluator")
        # A restarted chief would find tables of its predecessor in parameter servers that were not restarted.
        return cls(jobs, ("ps", "chief"), serving, run.evaluator)

    def addressed(self) -> list[Task]:
        """The tasks with an address, in the order of their start."""
        return [Task(job, index) for job, n in self.jobs.items() for index in range(n)]

    def tasks(self) -> list[Task]:
        """All of them, in the order of their start."""
        tasks = self.addressed()
        if self.evaluator is not None and self.evaluator not in tasks:
            tasks.append(self.evaluator)
        return tasks


@dataclass(frozen=True)
class Launch:
    """What the supervisor of a run and its engine share.

    Attributes:
      reporter: adds events to metrics.jsonl; the chief writes run.json.
    """

    run: RunConfig
    plan: TaskPlan
    folder: RunFolder
    stop: Stop
    console: Console
    reporter: Reporter


class TaskHandle(abc.ABC):
    """A task as its supervisor sees it, and its current process on any machine.

    Attributes:
      restarts: number of restarts.
      start_at_s: when a lost task is due to restart (`time.monotonic`); None while it runs.
    """

    def __init__(self, task: Task, folder: Path) -> None:
        self.task = task
        self.folder = folder
        self.restarts = 0
        self.start_at_s: float | None = None
        self._last_beat: tuple[task_files.Heartbeat | None, float] = (None, 0.0)

    @abc.abstractmethod
    def start(self) -> None:
        """Starts a process of the task; the one before it has ended. An override calls this first.

        Raises:
          PsrunError: that is not possible any more; the run ends.
        """
        task_files.path(self.folder, self.task).unlink(missing_ok=True)
        self.start_at_s = None

    @property
    @abc.abstractmethod
    def started(self) -> bool:
        """Whether `start` was called."""

    @property
    @abc.abstractmethod
    def pid(self) -> int | None:
        """The id of the process, on its machine; None until that is known."""

    @property
    @abc.abstractmethod
    def code(self) -> int | None:
        """The exit code, negative for a signal or a lost machine; None while it runs or before it was started."""

    @abc.abstractmethod
    def send(self, signum: int) -> None:
        """Sends a signal if the process is running."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kills the process, also a stopped one, and waits for it unless its machine is lost."""

    @property
    def running(self) -> bool:
        return self.started and self.code is None

    @property
    def how_it_ended(self) -> str:
        """How the process ended, as text."""
        return ended(self.code)

    def heartbeat(self) -> task_files.Heartbeat | None:
        """The last heartbeat of this process, dated by the clock of this machine; None before its first."""
        beat = task_files.read(self.folder, self.task)
        if beat is None or beat.pid != self.pid:
            return None
        if beat != self._last_beat[0]:
            self._last_beat = (beat, time.time())
        return replace(beat, at_s=self._last_beat[1])


class Backend:
    """An engine, as the supervisor of one run uses it.

    The `implementation` of a supervised cluster's choice names an `OpenBackend`, which connects to the engine, decides
    where each task runs and finds an address for each that serves. The supervisor starts the tasks, watches over their
    heartbeats, restarts what is lost, and stops all at the end; an engine never restarts a task by itself.

    Args:
      tasks: a handle for each task of the plan, in the order of their start.
      addresses: HOST:PORT of the tasks that serve; other values after a move.
    """

    def __init__(self, tasks: Mapping[Task, TaskHandle], addresses: Mapping[Task, str]) -> None:
        self.tasks = tasks
        self.addresses = addresses

    def look(self) -> None:
        """Called ten times a second. Raises PsrunError if the run cannot continue, and thereby ends it."""

    def find_lost_machines(self) -> None:
        """Called when a task has ended or hangs, before it is decided what restarts.

        Other tasks on a lost machine have ended from then on: each handle has a `code`, and `how_it_ended` says why.
        """

    def must_move(self, tasks: Sequence[TaskHandle]) -> bool:
        """Whether one of these tasks, which are about to restart, has to run elsewhere, and therefore all restart.

        All: each task is started with the addresses of all others. A task that is started after that is at its new
        place.
        """
        return False

    def kill_all(self) -> None:
        """Called right before this process exits at once: no task may outlive it."""
        for task in self.tasks.values():
            task.kill()

    def close(self, code: ExitCode) -> None:
        """Called once, at the end: no task runs any more. `code` is the exit code of the run."""


OpenBackend = Callable[[Launch], Backend]


class TaskProcess(TaskHandle):
    """One task of a run and its current process on this machine.

    Args:
      addresses: HOST:PORT of all tasks that serve.
      start_process: starts a process of the run in a folder.
      shares_gpus_with: the other tasks among which the visible GPUs are divided; None for all with an address.
    """

    def __init__(
        self,
        task: Task,
        addresses: Mapping[Task, str],
        folder: Path,
        start_process: StartProcess = start_alone,
        *,
        shares_gpus_with: Iterable[Task] | None = None,
    ) -> None:
        super().__init__(task, folder)
        self.process: ChildProcess | None = None
        self._addresses = addresses
        self._start_process = start_process
        self._sharing = addresses if shares_gpus_with is None else [task, *shares_gpus_with]

    def start(self) -> None:
        """Starts the task in a separate session: the supervisor passes on a Ctrl-C at the terminal."""
        super().start()
        environment = {
            **os.environ,
            **topology.gpus_of_task(self.task, self._sharing, topology.gpus_here()),
            "TF_CONFIG": tf_config(self._addresses, self.task),
            SUPERVISOR_PID: str(os.getpid()),
        }
        self.process = self._start_process(self.folder, environment, self.folder / "logs" / f"{self.task}.log")

    @property
    def started(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def code(self) -> int | None:
        return self.process.poll() if self.process else None

    def send(self, signum: int) -> None:
        if self.process is not None and self.running:
            self.process.send_signal(signum)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


class LocalBackend(Backend):
    """The engine of `cluster=local` and `multi_worker_mirrored`: a process on this machine for each task."""

    def __init__(self, launch: Launch) -> None:
        self._forks = ForkServer(launch.folder.log("fork-server"))
        start_process: StartProcess = start_alone
        if launch.run.cluster.fork_server:
            self._forks.begin()  # it imports while this process does
            start_process = self._forks.start
        plan = launch.plan
        addresses = {task: f"localhost:{portpicker.pick_unused_port()}" for task in plan.addressed()}
        folder = launch.folder.path
        super().__init__(
            {task: TaskProcess(task, addresses, folder, start_process) for task in plan.tasks()}, addresses
        )

    def close(self, code: ExitCode) -> None:
        self._forks.close()


@dataclass(frozen=True)
class Clock:
    """The time by which a supervisor goes: this machine's, unless a test passes another."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


CLOCK = Clock()


def end_all(tasks: Iterable[TaskHandle], clock: Clock, *, within_s: float) -> None:
    """Waits for all to exit, then sends SIGTERM, then kills them; each wait takes at most `within_s`."""
    tasks = list(tasks)
    deadline_s = clock.now_s() + within_s
    for signum in (0, signal.SIGTERM):
        if signum:
            for task in tasks:
                task.send(signum)
            deadline_s = clock.now_s() + within_s
        while any(task.running for task in tasks) and clock.now_s() < deadline_s:
            clock.sleep(0.05)
    for task in tasks:
        task.kill()
