"""What the tasks of a run tell each other, in small files of the run folder: heartbeats, requests, and their usage of
processor, memory and network. Each file has one writer.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from psrun import files
from psrun.config.topology import Task
from psrun.results.events import Progress

_BEAT_S = 0.5
_LONGER_AFTER = 500  # samples; then the interval doubles, so that a run of weeks has a few thousand
_JOIN_WITHIN_S = 5.0
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Heartbeat:
    """The state that a task reports.

    Attributes:
      pid: of the process.
      at_s: the time of the heartbeat (`time.time`).
      state: such as 'starting', 'serving', 'training', 'evaluating', 'saving', 'done'.
      step: applied steps, if the task knows them (the chief does).
      step_at_s: when `step` last changed (`time.time`).
      slowest_step_s: the longest time between two changes of `step`.
      advances: units of other work that were done, such as evaluated batches.
      progress: of the training, as `psrun.results.events.Progress`.
      usage: of the process, as `psrun.results.task_files.Usage`.
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
        beat = replace(self._read(), usage=asdict(usage_of_this_process()))
        try:
            files.write_atomic(self._path, json.dumps(asdict(beat)))
        except OSError:
            with contextlib.suppress(OSError):  # the disk is full: the existing file still shows that the task lives
                os.utime(self._path)


@contextlib.contextmanager
def heartbeats(folder: Path, task: Task, state: Callable[[], str]) -> Iterator[None]:
    """Writes heartbeats of this process in the context, for a task that knows no step.

    Args:
      state: returns the current one; see `Heartbeat`.
    """
    writer = HeartbeatWriter(folder, task, lambda: Heartbeat(os.getpid(), time.time(), state()))
    writer.start()
    try:
        yield
    finally:
        writer.stop()


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


@dataclass(frozen=True)
class Usage:
    """What a process has used since it began.

    The kernel counts the bytes of a network for all processes of a network namespace: a machine, a pod, or the tasks of
    a run that psrun has isolated, whose traffic over the loopback interface counts as sent and as received.

    Attributes:
      at_s: when (`time.time`).
      cpu_s: processor time in all cores.
      memory_bytes: resident memory now.
      received_bytes, sent_bytes: of all network interfaces, by all processes that share them, since this one began.
      free_bytes: memory that this process may still use, as `free_memory_bytes` returns it; None if it is not known.
    """

    at_s: float
    cpu_s: float
    memory_bytes: int
    received_bytes: int
    sent_bytes: int
    free_bytes: int | None = None


@dataclass(frozen=True)
class Rates:
    """The mean use between two samples. `cpu_percent`: of one core."""

    cpu_percent: float
    received_bytes_per_s: float
    sent_bytes_per_s: float


_began: Usage | None = None


def usage_of_this_process() -> Usage:
    """The usage so far; network bytes count from the first call."""
    global _began
    process = psutil.Process()  # now: tasks are forked from a process that has imported this module
    times = process.cpu_times()
    network = psutil.net_io_counters()  # None without an interface
    received = network.bytes_recv if network else 0
    sent = network.bytes_sent if network else 0
    resident = process.memory_info().rss
    now = Usage(time.time(), times.user + times.system, resident, received, sent, free_memory_bytes())
    if _began is None:
        _began = now
    return replace(now, received_bytes=received - _began.received_bytes, sent_bytes=sent - _began.sent_bytes)


def free_memory_bytes() -> int:
    """The free memory of this machine, less what limits of containers and of schedulers keep from this process."""
    free = psutil.virtual_memory().available
    for group in _control_groups():
        most = _read(group / "memory.max")
        used = _read(group / "memory.current")
        if most.isdigit() and used.isdigit():
            # The page cache counts as used memory, but is freed on demand.
            lines = _read(group / "memory.stat").splitlines()
            reclaimable = dict(line.split() for line in lines).get("inactive_file", "0")
            free = min(free, int(most) - int(used) + int(reclaimable))
    return free


def cpu_limit() -> int | None:
    """The number of cores that the container may use, at least one; None without a limit."""
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    return max(1, int(quota) // int(period)) if quota.isdigit() else None


def _control_groups() -> list[Path]:
    """The control groups that this process is in, the innermost first. A container sees its own as the outermost."""
    own = _CGROUP
    for line in _read(_OWN_GROUP).splitlines():
        if line.startswith("0::/"):  # of version 2, the only one with the files that are read here
            own = _CGROUP / line.removeprefix("0::/")
    return [own, *(parent for parent in own.parents if parent.is_relative_to(_CGROUP))]


def _read(file: Path) -> str:
    """The text of a file of the kernel; empty if there is none."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class UsageMeter:
    """The mean use of tasks between one sample and the next."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Usage, Rates | None]] = {}

    def read(self, task: str, usage: Usage | None) -> tuple[int | None, Rates | None]:
        """Memory in bytes, and the mean use since the sample before; None where it is not known.

        Args:
          usage: of a task that is alive; None if it does not tell.
        """
        if usage is None:
            return None, None
        before, rates = self._last.get(task, (None, None))
        if before is None or before.at_s != usage.at_s:
            rates = None if before is None else _rates(before, usage)
            self._last[task] = (usage, rates)
        return usage.memory_bytes, rates


def _rates(before: Usage, now: Usage) -> Rates | None:
    """The mean use between two samples of a task; None if they are of two processes."""
    seconds = now.at_s - before.at_s
    if seconds <= 0 or now.cpu_s < before.cpu_s:
        return None
    return Rates(
        100 * (now.cpu_s - before.cpu_s) / seconds,
        (now.received_bytes - before.received_bytes) / seconds,
        (now.sent_bytes - before.sent_bytes) / seconds,
    )


class Sampler:
    """Emits an event for each task in intervals, in a thread, and once more at the end.

    Args:
      every_s: the interval, which doubles after 500 samples, and so on.
      read: the usage of each task by its name; of tasks that are alive.
      emit: called with the data of an event.
    """

    def __init__(
        self, every_s: float, read: Callable[[], Mapping[str, Usage]], emit: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._every_s = every_s
        self._read = read
        self._emit = emit
        self._meter = UsageMeter()
        self._emitted: dict[str, float] = {}  # when the last sample of each task was taken
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psrun-system", daemon=True)

    def start(self) -> None:
        for task, usage in self._read().items():
            self._meter.read(task, usage)
            self._emitted[task] = usage.at_s
        self._thread.start()

    def stop(self) -> None:
        """Emits the last sample, and waits a bounded time for it."""
        self._ended.set()
        self._thread.join(_JOIN_WITHIN_S)

    def _run(self) -> None:
        count = 0
        while not self._ended.wait(self._every_s * 2 ** (count // _LONGER_AFTER)):
            self._sample()
            count += 1
        self._sample()

    def _sample(self) -> None:
        for task, usage in self._read().items():
            if self._emitted.get(task) == usage.at_s:  # nothing new was heard of it
                continue
            self._emitted[task] = usage.at_s
            memory_bytes, rates = self._meter.read(task, usage)
            cpu_percent = None if rates is None else round(rates.cpu_percent, 1)
            self._emit(
                {
                    "task": task,
                    "cpu_percent": cpu_percent,
                    "memory_bytes": memory_bytes,
                    "received_bytes": usage.received_bytes,
                    "sent_bytes": usage.sent_bytes,
                }
            )
