"""A task as its keeper starts it, looks at it and restarts it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from psrun.config import choices
from psrun.config.topology import Task
from psrun.errors import ended
from psrun.launch.hang_detector import HangDetector
from psrun.launch.restart_policy import RestartPolicy
from psrun.launch.task_processes import TaskProcess

KEEPERS_SIGNAL = signal.SIGHUP  # asks a task to end; Slurm never sends it
_OF_SLURM = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_POLL_S = 0.05


class ManagedTask:
    """One task, and the process that is it now.

    Args:
      addresses: HOST:PORT of each task that serves.
    """

    def __init__(self, cluster: choices.Slurm, folder: Path, task: Task, addresses: Mapping[Task, str]) -> None:
        self._cluster = cluster
        self.process = TaskProcess(task, addresses, folder)
        self._detector = HangDetector(cluster, time.monotonic())

    def start(self) -> None:
        """Starts the task, deaf to Slurm's signals, which are for the keepers.

        Slurm sends them to all processes of a step, and a parameter server that ended by itself would not be there for
        the chief to save what it holds.
        """
        self._detector = HangDetector(self._cluster, time.monotonic())
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_SLURM)  # what is blocked stays so in the new process
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_SLURM)

    def end(self, *, within_s: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Asks the task to end, and kills it where it does not in time; does `meanwhile` again and again."""
        self.process.send(KEEPERS_SIGNAL)
        deadline_s = time.monotonic() + within_s
        while self.process.running and time.monotonic() < deadline_s:
            meanwhile()
            time.sleep(_POLL_S)
        self.process.kill()

    def fault(self) -> str | None:
        """Why the task, which was started, must be started again; None where it runs or has ended for good."""
        code = self.process.code
        if code is not None:
            return ended(code) if code < 0 or code >= 128 else None
        return self._detector.heartbeat_fault(self.process.heartbeat(), time.monotonic())

    def lost(self) -> float:
        """Ends what may be left of the process; returns when the next is due, as of `time.monotonic`."""
        self.process.kill()
        self.process.restarts += 1
        return RestartPolicy.of(self._cluster.restart).due_s(self.process.restarts - 1, time.monotonic())
