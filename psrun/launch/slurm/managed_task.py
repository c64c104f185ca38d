"""A task as its agent starts, checks and restarts it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from psrun.config import choices
from psrun.config.topology import Task
from psrun.errors import ended
from psrun.launch.backend import TaskProcess
from psrun.launch.hang_detector import HangDetector
from psrun.launch.restart_policy import RestartPolicy
from psrun.launch.slurm.task_identity import AGENT_SIGNAL

_OF_SLURM = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_POLL_S = 0.05


class ManagedTask:
    """One task and its current process.

    Args:
      addresses: HOST:PORT of each task that serves.
    """

    def __init__(self, cluster: choices.Slurm, folder: Path, task: Task, addresses: Mapping[Task, str]) -> None:
        self._cluster = cluster
        self.process = TaskProcess(task, addresses, folder)
        self._detector = HangDetector(cluster, time.monotonic())

    def start(self) -> None:
        """Starts the task with Slurm's signals blocked, which are for the agents.

        Slurm sends them to all processes of a step. A parameter server that exited then could no longer be saved by the
        chief.
        """
        self._detector = HangDetector(self._cluster, time.monotonic())
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_SLURM)  # the new process inherits the mask
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_SLURM)

    def end(self, *, within_s: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Asks the task to exit, kills it if it does not in time, and calls `meanwhile` repeatedly while it waits."""
        self.process.send(AGENT_SIGNAL)
        deadline_s = time.monotonic() + within_s
        while self.process.running and time.monotonic() < deadline_s:
            meanwhile()
            time.sleep(_POLL_S)
        self.process.kill()

    @property
    def silent_s(self) -> float:
        """How long its heartbeat had not changed at the last call of `fault`."""
        return self._detector.silent_s

    def waited(self) -> None:
        """As `HangDetector.waited`."""
        self._detector.waited(time.monotonic())

    def fault(self, others: Iterable[HangDetector] = ()) -> str | None:
        """Why the task must be restarted; None if it runs, may wait for one of `others`, or has ended for good."""
        code = self.process.code
        if code is not None:
            return ended(code) if code < 0 or code >= 128 else None
        cause = self._detector.heartbeat_fault(self.process.heartbeat(), time.monotonic())
        return None if cause is not None and self._detector.may_wait_for(others) else cause

    def lost(self) -> float:
        """Kills the process; returns when the next one is due, as of `time.monotonic`."""
        self.process.kill()
        self.process.restarts += 1
        return RestartPolicy.of(self._cluster.restart).due_s(self.process.restarts - 1, time.monotonic())
