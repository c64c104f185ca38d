"""The tasks of a run as its driver sees them: the counterpart of `psrun.launch.backend` for actors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from psrun.config.topology import Task
from psrun.errors import ended
from psrun.launch.backend import TaskHandle
from psrun.launch.ray.fleet import Fleet

_KILLED_WITHIN_S = 5.0
_MOST_CHARACTERS = 200


class RayTask(TaskHandle):
    """One task and its current actor."""

    def __init__(self, task: Task, fleet: Fleet, folder: Path) -> None:
        super().__init__(task, folder)
        self._fleet = fleet
        self._actor: Any = None
        self._ended: Any = None  # reference to the exit code
        self._pid_reference: Any = None
        self._pid: int | None = None
        self._code: int | None = None
        self._how = ""

    def start(self) -> None:
        """Starts the task, on another node if its node was lost.

        Raises:
          ClusterError: the remaining nodes have no room for all tasks.
        """
        super().start()
        self._actor = self._fleet.start(self.task)
        self._ended, self._pid_reference = self._actor.wait.remote(), self._actor.pid.remote()
        self._pid = self._code = None

    @property
    def started(self) -> bool:
        return self._actor is not None

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal or a lost node; None while it runs."""
        if self._actor is None or self._code is not None:
            return self._code
        lost = self._fleet.lost(self.task)
        if lost is not None:
            self._code, self._how = -signal.SIGKILL, f"was lost with its node {lost}"
        elif ray.wait([self._ended], timeout=0)[0]:
            try:
                self._code = ray.get(self._ended)
                self._how = ended(self._code)
            except RayError as error:
                self._fleet.check_nodes()
                lost, message = self._fleet.lost(self.task), " ".join(str(error).split())
                where = f"node {lost}" if lost else f"actor ({message[:_MOST_CHARACTERS]})"
                self._code, self._how = -signal.SIGKILL, f"was lost with its {where}"
        return self._code

    @property
    def how_it_ended(self) -> str:
        return self._how if self.code is not None else ""

    def send(self, signum: int) -> None:
        """Sends a signal if the process is running."""
        if self.running:
            self._actor.send.remote(int(signum))

    def kill(self) -> None:
        """Kills the actor and its process, also a stopped one, and waits for it if its node is reachable."""
        if self._actor is None or self._ended is None:
            return
        ray.kill(self._actor)
        if self._fleet.lost(self.task) is None:
            ray.wait([self._ended], timeout=_KILLED_WITHIN_S)
        self._code, self._ended = -signal.SIGKILL if self._code is None else self._code, None

    @property
    def pid(self) -> int | None:
        if self._pid is None and self._pid_reference is not None and ray.wait([self._pid_reference], timeout=0)[0]:
            try:
                self._pid = ray.get(self._pid_reference)
            except RayError:  # the actor is gone, which `code` reports
                self._pid_reference = None
        return self._pid
