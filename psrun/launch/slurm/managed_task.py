"""A task as its keeper starts it, looks at it and restarts it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from psrun.config import choices
from psrun.config.topology import Task
from psrun.errors import ended
from psrun.launch.task_processes import TaskProcess
from psrun.results.task_files import age_s

KEEPERS_SIGNAL = signal.SIGHUP  # asks a task to end; Slurm never sends it
_OF_SLURM = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_OWN_STALL_S = 2.0
_POLL_S = 0.05


class ManagedTask:
    """One task, and the process that is it now.

    Args:
      addresses: HOST:PORT of each task that serves.
    """

    def __init__(self, cluster: choices.Slurm, folder: Path, task: Task, addresses: Mapping[Task, str]) -> None:
        self._cluster = cluster
        self.process = TaskProcess(task, addresses, folder)
        self._looked_s = self._no_hangs_before_s = time.monotonic()
        self._came_up = False

    def start(self) -> None:
        """Starts the task, deaf to Slurm's signals, which are for the keepers.

        Slurm sends them to all processes of a step, and a parameter server that ended by itself would not be there for
        the chief to save what it holds.
        """
        self._came_up = False
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
        now_s = time.monotonic()
        if now_s - self._looked_s > _OWN_STALL_S:  # this process was held up, or the disk: late beats mean nothing yet
            self._no_hangs_before_s = now_s + self._cluster.heartbeat_timeout_s
        self._looked_s = now_s
        code = self.process.code
        if code is not None:
            return ended(code) if code < 0 or code >= 128 else None
        return self._hangs() if now_s >= self._no_hangs_before_s else None

    def _hangs(self) -> str | None:
        beat, within_s = self.process.heartbeat(), self._cluster.start_timeout_s
        self._came_up |= beat is not None
        if beat is None:  # such as of one that waits for a disk that does not answer
            late = not self._came_up and time.time() - self.process.started_s > within_s
            return f"did not come up within {within_s:.0f} s" if late else None
        if age_s(beat) > self._cluster.heartbeat_timeout_s:
            return f"hangs: not heard of for {age_s(beat):.0f} s"
        return None

    def lost(self) -> float:
        """Ends what may be left of the process; returns when the next is due, as of `time.monotonic`."""
        self.process.kill()
        self.process.restarts += 1
        limits, before = self._cluster.restart, self.process.restarts - 1
        delay_s = min(limits.backoff_s * 2 ** (before - 1), limits.max_backoff_s) if before else 0.0
        return time.monotonic() + delay_s
