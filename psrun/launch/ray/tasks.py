"""The tasks of a run as its driver sees them: what `psrun.launch.task_processes` does for processes of this machine."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from psrun.config.topology import Task
from psrun.errors import ended
from psrun.launch.ray.fleet import Fleet
from psrun.results import task_files

_KILLED_WITHIN_S = 5.0
_SAID_MOST = 200


class RayTask:
    """One task and the actor that it is now."""

    def __init__(self, task: Task, fleet: Fleet, folder: Path) -> None:
        self.task, self.restarts = task, 0
        self.start_at_s: float | None = None
        self._fleet, self._folder = fleet, folder
        self._actor: Any = None
        self._ended: Any = None  # Ray's promise of the exit code
        self._told_pid: Any = None
        self._pid: int | None = None
        self._code: int | None = None
        self._how = ""
        self._beat: tuple[task_files.Heartbeat | None, float] = (None, 0.0)

    def start(self) -> None:
        """Starts the task, on a node that is chosen anew where its own was lost.

        Raises:
          ClusterError: what nodes are left have no room for all tasks.
        """
        task_files.path(self._folder, self.task).unlink(missing_ok=True)
        self._actor = self._fleet.start(self.task)
        self._ended, self._told_pid = self._actor.wait.remote(), self._actor.pid.remote()
        self._pid = self._code = None
        self.start_at_s = None

    @property
    def started(self) -> bool:
        return self._actor is not None

    @property
    def running(self) -> bool:
        return self.started and self.code is None

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal, also where the whole node has gone; None while it runs."""
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
                self._fleet.look_after(self.task)
                lost, said = self._fleet.lost(self.task), " ".join(str(error).split())
                where = f"node {lost}" if lost else f"actor ({said[:_SAID_MOST]})"
                self._code, self._how = -signal.SIGKILL, f"was lost with its {where}"
        return self._code

    @property
    def how_it_ended(self) -> str:
        return self._how if self.code is not None else ""

    def send(self, signum: int) -> None:
        """A signal, if there is somebody to get it."""
        if self.running:
            self._actor.send.remote(int(signum))

    def kill(self) -> None:
        """Ends the actor now, and so its process, also a stopped one, and waits for it as far as it can be reached."""
        if self._actor is None or self._ended is None:
            return
        ray.kill(self._actor)
        if self._fleet.lost(self.task) is None:
            ray.wait([self._ended], timeout=_KILLED_WITHIN_S)
        self._code, self._ended = -signal.SIGKILL if self._code is None else self._code, None

    def heartbeat(self) -> task_files.Heartbeat | None:
        """The last one of this process, by the clock of this machine; None before its first."""
        if self._pid is None and self._told_pid is not None and ray.wait([self._told_pid], timeout=0)[0]:
            try:
                self._pid = ray.get(self._told_pid)
            except RayError:  # the actor is gone, which `code` reports
                self._told_pid = None
        beat = task_files.read(self._folder, self.task)
        if beat is None or beat.pid != self._pid:
            return None
        if beat != self._beat[0]:
            self._beat = beat, time.time()
        return replace(beat, at_s=self._beat[1])

    def usage(self) -> tuple[None, None]:
        """Is not seen from here."""
        return None, None
