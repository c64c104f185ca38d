"""What the tasks of a run use of their machines: processor, memory and network, over time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil

_LONGER_AFTER = 500  # samples; then the interval doubles, so that a run of weeks has a few thousand
_JOIN_WITHIN_S = 5.0


@dataclass(frozen=True)
class Usage:
    """What a process has used since it began.

    The kernel counts the bytes of a network for all processes of a network namespace: a machine, a pod, or the tasks of
    a run that psrun has isolated, whose traffic over the loopback interface counts as sent and as received.

    Attributes:
      at_s: when, as of `time.time`.
      cpu_s: processor time in all cores.
      memory_bytes: resident memory now.
      received_bytes, sent_bytes: of all network interfaces, by all processes that share them, since this one began.
    """

    at_s: float
    cpu_s: float
    memory_bytes: int
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class Rates:
    """The mean use between two samples. `cpu_percent`: of one core."""

    cpu_percent: float
    received_bytes_per_s: float
    sent_bytes_per_s: float


_began: Usage | None = None


def of_this_process() -> Usage:
    """The usage so far; network bytes count from the first call."""
    global _began
    process = psutil.Process()  # now: tasks are forked from a process that has imported this module
    times = process.cpu_times()
    network = psutil.net_io_counters()  # None without an interface
    received, sent = (network.bytes_recv, network.bytes_sent) if network else (0, 0)
    now = Usage(time.time(), times.user + times.system, process.memory_info().rss, received, sent)
    if _began is None:
        _began = now
    return replace(now, received_bytes=received - _began.received_bytes, sent_bytes=sent - _began.sent_bytes)


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
            self._emit(
                {
                    "task": task,
                    "cpu_percent": None if rates is None else round(rates.cpu_percent, 1),
                    "memory_bytes": memory_bytes,
                    "received_bytes": usage.received_bytes,
                    "sent_bytes": usage.sent_bytes,
                }
            )
