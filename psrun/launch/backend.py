"""The tasks of a local cluster, each with its current process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from psrun.config import gpus
from psrun.config.topology import Task, tf_config
from psrun.errors import ended
from psrun.launch.child_processes import ChildProcess, StartProcess, start_alone
from psrun.process import SUPERVISOR_PID
from psrun.results import task_files


class TaskHandle(Protocol):
    """A task as its supervisor sees it, on any machine; see `TaskProcess`."""

    task: Task
    restarts: int
    start_at_s: float | None

    def start(self) -> None: ...

    @property
    def started(self) -> bool: ...

    @property
    def code(self) -> int | None: ...

    @property
    def how_it_ended(self) -> str: ...

    @property
    def running(self) -> bool: ...

    def send(self, signum: int) -> None: ...

    def kill(self) -> None: ...

    def heartbeat(self) -> task_files.Heartbeat | None: ...

    def usage(self) -> tuple[int | None, float | None]: ...


@dataclass
class TaskProcess:
    """One task and its current process.

    Attributes:
      start_process: starts a process of the run in a folder.
      restarts: number of restarts.
      start_at_s: when a lost task is due to restart, as of `time.monotonic`; None while it runs.
    """

    task: Task
    addresses: Mapping[Task, str]
    folder: Path
    start_process: StartProcess = start_alone
    process: ChildProcess | None = None
    restarts: int = 0
    start_at_s: float | None = None
    _usage: psutil.Process | None = field(default=None, repr=False)

    def start(self) -> None:
        """Starts the task in a separate session: the supervisor passes on a Ctrl-C at the terminal."""
        task_files.path(self.folder, self.task).unlink(missing_ok=True)
        environment = {
            **os.environ,
            **gpus.of_task(self.task, self.addresses, gpus.here()),
            "TF_CONFIG": tf_config(self.addresses, self.task),
            SUPERVISOR_PID: str(os.getpid()),
        }
        self.process = self.start_process(self.folder, environment, self.folder / "logs" / f"{self.task}.log")
        self._usage = None
        self.start_at_s = None

    @property
    def started(self) -> bool:
        return self.process is not None

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs or before it was started."""
        return self.process.poll() if self.process else None

    @property
    def how_it_ended(self) -> str:
        """How the process ended, as text."""
        return ended(self.code)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, signum: int) -> None:
        """Sends a signal if the process is running."""
        if self.running and self.process is not None:
            self.process.send_signal(signum)

    def kill(self) -> None:
        """Kills the process, also a stopped one, and waits for it."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def heartbeat(self) -> task_files.Heartbeat | None:
        """The last heartbeat of this process; None before its first."""
        beat = task_files.read(self.folder, self.task)
        return beat if beat and self.process and beat.pid == self.process.pid else None

    def usage(self) -> tuple[int | None, float | None]:
        """Memory in bytes, and processor use in percent of one core since the last call; zeros once it has exited.

        None for a process on another machine.
        """
        try:
            if self.running and self.process is not None and self.process.pid is not None:
                self._usage = self._usage or psutil.Process(self.process.pid)
                return self._usage.memory_info().rss, self._usage.cpu_percent()
        except psutil.Error:
            pass
        return 0, 0.0


def end_all(tasks: Iterable[TaskHandle], *, within_s: float) -> None:
    """Waits for all to exit, then sends SIGTERM, then kills them; each wait takes at most `within_s`."""
    tasks, deadline_s = list(tasks), time.monotonic() + within_s
    for signum in (0, signal.SIGTERM):
        if signum:
            for task in tasks:
                task.send(signum)
            deadline_s = time.monotonic() + within_s
        while any(task.running for task in tasks) and time.monotonic() < deadline_s:
            time.sleep(0.05)
    for task in tasks:
        task.kill()
