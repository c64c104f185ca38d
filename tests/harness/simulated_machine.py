"""A machine with a fake clock, on which a sweep's process and its jobs run as threads that take turns.

Files and their locks are real. The processes of jobs follow a script: see `Job`. Nothing sleeps.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psrun import files
from psrun.errors import ExitCode
from psrun.results import run_state
from psrun.results.run_folder import RunFolder
from psrun.runs.sweeps import jobs, runner, sweep

_BEGINS_AFTER_S = 0.05  # a job's process, with its record
_EXITS_AFTER_S = 0.02  # after the record of its end
_LONGEST_S = 10_000.0
_JITTER_S = 0.01


class Killed(BaseException):
    """The simulated process of this thread has ended."""


class Process:
    """A simulated process: its threads, the locks that it holds, and the jobs that it has started."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.is_over = False
        self.over_s = 0.0
        self.locks: list[int] = []
        self.jobs: list[Job] = []
        self.code: int | None = None

    def end(self, code: int = -signal.SIGKILL) -> None:
        """The kernel releases its locks and ends its jobs."""
        if not self.is_over:
            self.is_over = True
            self.over_s = self.machine.now_s
            self.code = code
            for descriptor in self.locks:
                os.close(descriptor)
            for job in self.jobs:
                job.kill()
            self.machine.wake(self)


class _Thread(threading.Thread):
    """A thread of a simulated process. It runs only when the machine gives it a turn."""

    def __init__(self, machine: Machine, process: Process, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.machine = machine
        self.process = process
        self.work = work
        self.wakes_s = machine.now_s
        self.turn = threading.Semaphore(0)
        self.is_over = False
        self.signals: list[int] = []
        self.handle: Callable[[int, object], None] = lambda signum, frame: None

    def run(self) -> None:
        self.turn.acquire()
        try:
            if not self.process.is_over:
                self.work()
        except Killed:
            pass
        except BaseException as error:
            self.machine.errors.append(error)
        finally:
            self.is_over = True
            self.machine.turn.release()

    def sleep(self, seconds: float) -> None:
        self.wakes_s = self.machine.now_s + seconds
        self.machine.turn.release()
        self.turn.acquire()
        if self.process.is_over:
            raise Killed
        while self.signals:
            self.handle(self.signals.pop(0), None)

    def send_signal(self, signum: int) -> None:
        """As Python does, it runs the handler in this thread."""
        if not self.is_over:
            self.signals.append(signum)
            self.wakes_s = self.machine.now_s


class Machine:
    """The clock, the threads and the jobs.

    Args:
      scripts: the outcomes of each start of the job in a folder of this name; then it completes.
      seed: of the order of what happens at one time.

    Attributes:
      started: the names of the folders of all started jobs.
      errors: what ended a thread.
      before_write, after_write: called with the path of each file that a process of the sweep replaces.
    """

    def __init__(self, scripts: dict[str, list[tuple[str, float]]], *, seed: int) -> None:
        self.now_s = 1e9
        self.turn = threading.Semaphore(0)
        self.errors: list[BaseException] = []
        self.started: list[str] = []
        self.running: list[Job] = []
        self.before_write: Callable[[Path], None] = lambda path: None
        self.after_write: Callable[[Path], None] = lambda path: None
        self.check: Callable[[], None] = lambda: None
        self._scripts = {name: list(each) for name, each in scripts.items()}
        self._random = random.Random(seed)
        self._threads: list[_Thread] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._current: _Thread | None = None

    # -- threads and time

    def thread(self, process: Process, work: Callable[[], None]) -> _Thread:
        thread = _Thread(self, process, work)
        self._threads.append(thread)
        thread.start()
        return thread

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Acts after `seconds`."""
        self._timers.append((self.now_s + seconds, next(self._numbers), act))

    def wake(self, process: Process) -> None:
        for thread in self._threads:
            if thread.process is process:
                thread.wakes_s = self.now_s

    def run(self) -> None:
        """Runs everything to its end."""
        ends_s = self.now_s + _LONGEST_S
        while any(not thread.is_over for thread in self._threads) or self._timers:
            timer = min(self._timers, default=None)
            thread = min((each for each in self._threads if not each.is_over), key=attrgetter("wakes_s"), default=None)
            if timer is not None and (thread is None or timer[0] <= thread.wakes_s):
                self._timers.remove(timer)
                self.now_s = max(self.now_s, timer[0])
                timer[2]()
            elif thread is not None:
                self.now_s = max(self.now_s, thread.wakes_s)
                self._current = thread
                thread.turn.release()
                self.turn.acquire()
                self._current = None
            self.check()
            assert self.now_s < ends_s, "the sweep does not end"
        for each in self._threads:
            each.join()
        self._threads.clear()

    def sleep(self, seconds: float) -> None:
        assert self._current is not None
        self._current.sleep(seconds + self._random.random() * _JITTER_S)

    @property
    def process(self) -> Process:
        """The process whose turn it is."""
        assert self._current is not None
        return self._current.process

    # -- what the sweep calls

    def start_job(self, folder: Path, environment: object, log: Path) -> Job:
        log.touch()
        os.utime(log, (self.now_s, self.now_s))
        script = self._scripts.setdefault(folder.name, [])
        kind, seconds = script.pop(0) if script else ("completes", 0.1)
        job = Job(self, folder, kind, seconds)
        self.started.append(folder.name)
        self.running.append(job)
        self.process.jobs.append(job)
        self.check()
        return job

    def _write(self, path: Path, text: str, *, durable: bool = False) -> None:
        of_sweep = self._current is not None
        if of_sweep:
            self.before_write(path)
        _write_atomic(path, text)
        os.utime(path, (self.now_s, self.now_s))
        if of_sweep:
            self.after_write(path)

    def _hold(self, path: Path, *, within_s: float = 0.0) -> bool:
        descriptor = files.lock(path, within_s=within_s)
        if descriptor is not None:
            self.process.locks.append(descriptor)
        return descriptor is not None

    def _leave(self, code: int) -> None:
        self.process.end(code)
        raise Killed

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """What the sweep calls is this machine in the context."""
        clock = SimpleNamespace(time=lambda: self.now_s, monotonic=lambda: self.now_s, sleep=self.sleep)
        with pytest.MonkeyPatch.context() as patched:
            for module in (jobs, runner, sweep, run_state, files):
                patched.setattr(module, "time", clock)
            for name, value in (("write_atomic", self._write), ("hold", self._hold), ("sync", lambda path: None)):
                patched.setattr(files, name, value)
            patched.setattr(jobs.process, "leave", self._leave)
            patched.setattr(runner, "os", SimpleNamespace(_exit=self._leave))
            yield


_write_atomic = files.write_atomic


class Job:
    """The process of a job, as `psrun.launch.child_processes.ChildProcess`.

    Args:
      kind: it completes, fails, requests a restart, or is killed after `seconds`; it ends before it records anything
        ('never begins'); it hangs until a signal, or until it is killed ('deaf').
    """

    def __init__(self, machine: Machine, folder: Path, kind: str, seconds: float) -> None:
        self.name = folder.name
        self._machine = machine
        self._run = RunFolder(folder)
        self._kind = kind
        self._seconds = seconds
        self._code: int | None = None
        self._has_begun = False
        self._is_ending = False
        machine.at(_BEGINS_AFTER_S, self._begin)

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None and timeout is not None:
            self._machine.sleep(timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
        return self._code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signum: int) -> None:
        if self._code is None and (signum == signal.SIGKILL or not self._has_begun):
            self._exit(-signum)
        elif self._code is None and self._kind != "deaf" and not self._is_ending:
            self._end(ExitCode.INTERRUPTED, status="interrupted", exit_code=130, error={"message": "interrupted"})

    def _begin(self) -> None:
        if self._code is not None:
            return
        if self._kind == "never begins":
            self._exit(1)
            return
        self._has_begun = True
        self._run.emit("begun", overrides=[])
        if self._kind not in ("hangs", "deaf"):
            self._machine.at(self._seconds, self._act)

    def _act(self) -> None:
        if self._code is not None or self._is_ending:
            return
        if self._kind == "completes":
            self._end(ExitCode.DONE, status="completed", exit_code=0, metrics={"loss": 0.5})
        elif self._kind == "fails":
            self._end(ExitCode.FAILED, status="failed", exit_code=1, error={"message": "unlucky"})
        elif self._kind == "restarts":
            self._end(ExitCode.RESTART, status="interrupted", exit_code=175, error={"message": "a server was lost"})
        else:
            self._exit(-signal.SIGKILL)

    def _end(self, code: int, **record: Any) -> None:
        self._is_ending = True
        self._run.emit("ended", **record)
        self._machine.at(_EXITS_AFTER_S, lambda: self._exit(code))

    def _exit(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._machine.running.remove(self)
