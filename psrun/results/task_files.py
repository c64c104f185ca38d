"""Small files in the run folder that the tasks of one run share: heartbeats and requests. Each has one writer."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from psrun import files
from psrun.config.topology import Task
from psrun.results import system_usage
from psrun.results.events import Progress
from psrun.results.system_usage import Usage

_BEAT_S = 0.5


@dataclass(frozen=True)
class Heartbeat:
    """The state that a task reports.

    Attributes:
      pid: of the process.
      at_s: the time of the heartbeat, as of `time.time`.
      state: such as 'starting', 'serving', 'training', 'evaluating', 'saving', 'done'.
      step: applied steps, if the task knows them (the chief does).
      step_at_s: when `step` last changed, as of `time.time`.
      slowest_step_s: the longest time between two changes of `step`.
      advances: units of other work that were done, such as evaluated batches.
      progress: of the training, as `psrun.results.events.Progress`.
      usage: of the process, as `psrun.results.system_usage.Usage`.
    """

    pid: int
    at_s: float
    state: str
    step: int | None = None
    step_at_s: float | None = None
    slowest_step_s: float | None = None
    advances: int = 0
    progress: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None

    @property
    def used(self) -> Usage | None:
        """`usage`; None if there is none, or another version of psrun wrote it."""
        try:
            return Usage(**self.usage) if self.usage else None
        except TypeError:
            return None

    @property
    def training(self) -> Progress | None:
        """`progress`; None if there is none, or another version of psrun wrote it."""
        try:
            return Progress(**self.progress) if self.progress else None
        except TypeError:
            return None


class HeartbeatWriter:
    """Writes a heartbeat twice a second from a separate thread, until stopped.

    The thread calls `read`, which must not access a variable: that blocks while a parameter server hangs.
    """

    def __init__(self, folder: Path, task: Task, read: Callable[[], Heartbeat]) -> None:
        self._path = path(folder, task)
        self._read = read
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="psrun-heart", daemon=True)

    def start(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2 * _BEAT_S)
        self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stopped.wait(_BEAT_S):
            self._write()

    def _write(self) -> None:
        beat = replace(self._read(), usage=asdict(system_usage.of_this_process()))
        try:
            files.write_atomic(self._path, json.dumps(asdict(beat)))
        except OSError:
            with contextlib.suppress(OSError):  # the disk is full: the existing file still shows that the task lives
                os.utime(self._path)


def shared(folder: Path) -> Path:
    """The folder that the tasks of the run in `folder` share; the supervisor of the tasks removes it."""
    return folder / ".tasks"


def claim(folder: Path, name: str, key: str) -> None:
    """Makes the process with `key` the one that runs a task, or the supervisor: earlier ones on lost nodes exit.

    Raises:
      OSError: it could not be written.
    """
    shared(folder).mkdir(parents=True, exist_ok=True)
    files.write_atomic(shared(folder) / f"{name}.holder", key)


def is_replaced(folder: Path, name: str, key: str) -> bool:
    """Whether another process than the one with `key` is to run `name`, or none. False if the disk does not answer."""
    names(shared(folder))
    try:
        return (shared(folder) / f"{name}.holder").read_text(encoding="utf-8") != key
    except FileNotFoundError:
        return True
    except OSError:
        return False


def stop_marker(folder: Path) -> Path:
    """The file by which the chief of synchronous tasks stops the others after the next execution."""
    return shared(folder) / "stop"


def path(folder: Path, task: Task) -> Path:
    return shared(folder) / f"{task}.json"


def read(folder: Path, task: Task) -> Heartbeat | None:
    """The last heartbeat of a task; None without one."""
    file = path(folder, task)
    try:
        beat = Heartbeat(**json.loads(file.read_text(encoding="utf-8")))
        return replace(beat, at_s=max(beat.at_s, file.stat().st_mtime))
    except (OSError, json.JSONDecodeError, TypeError):
        return None


def beats(folder: Path) -> dict[Task, Heartbeat]:
    """The last heartbeats of the tasks of the run in `folder`."""
    found = {}
    for name in sorted(names(shared(folder))):
        job, _, index = name.removesuffix(".json").rpartition("-")
        task = Task(job, int(index)) if name.endswith(".json") and job and index.isdecimal() else None
        beat = read(folder, task) if task else None
        if task and beat:
            found[task] = beat
    return found


def names(folder: Path) -> list[str]:
    """The names in a folder; none if another process has removed it.

    Processes that wait for a file list the folder too: an NFS client asks its server for the names when a folder is
    opened, and otherwise uses its cache for up to a minute.
    """
    try:
        return os.listdir(folder)
    except OSError:
        return []


def still_beats(folder: Path, task: Task, *, within_s: float = 0.0) -> bool:
    """Whether the task on any host is alive, and does not end `within_s`: its heartbeat changes, by any clock."""
    deadline_s = time.monotonic() + within_s
    while True:
        before = read(folder, task)
        if before is None:
            return False
        time.sleep(3 * _BEAT_S)
        after = read(folder, task)
        if after is None or after.at_s == before.at_s:
            return False
        if time.monotonic() >= deadline_s:
            return True


def age_s(beat: Heartbeat) -> float:
    return time.time() - beat.at_s
