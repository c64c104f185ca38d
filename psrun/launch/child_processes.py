"""Starts the processes of tasks and of a sweep's jobs: alone, or by a fork server, which has imported what they need.

The fork server is a process with one thread that imports TensorFlow once and forks: `psrun.roles.fork_server`. The
standard library has one, `multiprocessing.forkserver`, but its processes are its own children: they would be lost with
it, and the kernel would not end them with the process that asked for them. Here they are children of that process.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from psrun import process
from psrun.config import topology
from psrun.errors import ended

# Of a request or an answer. The longest part is TF_CONFIG; a process with a longer one starts alone.
MAX_MESSAGE_BYTES = 2**17
# Variables that act when they are set after TensorFlow was imported. A process that differs from the fork server in
# any other starts alone.
_MAY_DIFFER = {"TF_CONFIG", topology.VISIBLE_GPUS, process.SUPERVISOR_PID, process.SWEEP_PID}
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_PR_SET_CHILD_SUBREAPER = 36
_IMPORTED_WITHIN_S = 180.0
_FORKED_WITHIN_S = 30.0  # on a machine with much else to do
_CLOSED_WITHIN_S = 5.0
_POLL_S = 0.02
_MOST_STARTS = 3


def start_alone(folder: Path, environment: Mapping[str, str], log: Path) -> ChildProcess:
    """Starts a process of the run in `folder` that imports what it needs itself, in its own session.

    Args:
      environment: of the process.
      log: its standard output and standard error are appended to this file.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            process.task_command(folder),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


class ForkedProcess:
    """A process that a fork server was asked for: a child of this process once it has been forked.

    Until then `poll` returns None, and a signal withdraws the request. It starts alone if it cannot be forked.

    Args:
      look: reads the answers of the fork server.
      lock: of the fork server.
    """

    def __init__(
        self, look: Callable[[], None], lock: threading.RLock, start_alone: Callable[[], ChildProcess]
    ) -> None:
        self._look = look
        self._lock = lock
        self._start_alone = start_alone
        self._must_start_alone = False
        self._alone: ChildProcess | None = None
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int | None:
        """None until it is forked."""
        with self._lock:
            return self._alone.pid if self._alone else self._pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs or waits for the fork server."""
        with self._lock:
            self._look()
            if self._must_start_alone and self._code is None:
                self._must_start_alone = False
                self._alone = self._start_alone()
            if self._alone is not None:
                return self._alone.poll()
            if self._code is None and self._pid is not None:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, signum: int) -> None:
        """Sends a signal if it has not ended."""
        with self._lock:
            if self.poll() is not None:
                return
            if self._alone is not None:
                self._alone.send_signal(signum)
            elif self._pid is not None:
                os.kill(self._pid, signum)
            else:
                self.withdraw(signum)

    def kill(self) -> None:
        """Kills it, also a stopped one."""
        self.send_signal(signal.SIGKILL)

    def forked(self, pid: int) -> None:
        """The process exists. A request that was withdrawn leaves none."""
        if self._code is None:
            self._pid = pid
        else:
            _kill_child(pid)

    def refused(self) -> None:
        """The fork server does not fork the process: it starts alone at the next `poll`.

        Not here: the kernel ends a process with the thread that has started it, and any thread may read the answers.
        """
        self._must_start_alone = True

    def withdraw(self, signum: int) -> None:
        """Ends a process that does not exist yet, as the signal would."""
        self._code = -signum


# As `subprocess.Popen` presents it, but that the id of a process may not be known yet.
ChildProcess = subprocess.Popen[bytes] | ForkedProcess
StartProcess = Callable[[Path, Mapping[str, str], Path], ChildProcess]


class ForkServer:
    """The fork server of this process: starts it, and again if it was lost, and asks it for processes.

    Every request is met: the server forks the process, or the process starts alone. A run never fails because of its
    fork server. Threads may share it.

    Args:
      log: receives the output of its imports, and why processes start alone.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lock = threading.RLock()  # a signal handler may interrupt the main thread while it holds the lock
        self._numbers = itertools.count()
        self._pending: dict[int, ForkedProcess] = {}
        self._process: subprocess.Popen | None = None
        self._socket: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._starts_left = _MOST_STARTS
        self._is_ready = False
        self._answers_by_s = 0.0

    def begin(self) -> None:
        """Starts the server: it imports while this process goes on. Does nothing if that fails."""
        with self._lock, contextlib.suppress(OSError):
            if self._process is None and self._starts_left > 0:
                self._starts_left -= 1
                self._begin()

    def start(self, folder: Path, environment: Mapping[str, str], log: Path) -> ChildProcess:
        """Starts a process as `start_alone` does; see there."""
        with self._lock:
            self.look()  # it may be lost
            self.begin()
            number = next(self._numbers)
            requested = ForkedProcess(self.look, self._lock, lambda: start_alone(folder, environment, log))
            self._pending[number] = requested
            try:
                self._ask(number, folder, environment, log)
            except (OSError, ValueError) as error:
                self._answered({"id": number, "refused": f"{folder}: {error}"})
            requested.poll()  # starts it now if it was refused
        return requested

    def look(self) -> None:
        """Reads the answers that have arrived, and gives up a server that has ended or does not answer."""
        with self._lock:
            while self._socket is not None:
                try:
                    answer = self._socket.recv(MAX_MESSAGE_BYTES)
                except BlockingIOError:
                    break
                except OSError:
                    answer = b""
                if not answer:
                    self._give_up("it has ended")
                    break
                self._answered(json.loads(answer))
            if self._pending and self._socket is not None and (fault := self._fault()):
                self._give_up(fault)

    def close(self) -> None:
        """Ends the server. Withdraws all requests."""
        with self._lock:
            for requested in self._pending.values():
                requested.withdraw(signal.SIGKILL)
            self._end()

    def _begin(self) -> None:
        self._environment = dict(os.environ)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                process.module_command("psrun.roles.fork_server", str(theirs.fileno()), str(os.getpid())),
                env=self._environment,  # without what libraries have set for themselves
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            self._socket = ours.dup()
            self._socket.setblocking(False)  # a server that imports or is stopped does not read
        self._is_ready = False
        self._answers_by_s = time.monotonic() + _IMPORTED_WITHIN_S

    def _ask(self, number: int, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        """Sends a request.

        Raises:
          OSError: it could not be sent.
          ValueError: the server cannot fork such a process.
        """
        if self._socket is None:
            raise ValueError("there is no fork server")
        names = {*environment, *self._environment} - _MAY_DIFFER
        different = sorted(name for name in names if environment.get(name) != self._environment.get(name))
        if different:
            raise ValueError(f"its environment differs in {', '.join(different)}")
        request = {
            "id": number,
            "folder": str(folder),
            "environment": {name: environment.get(name) for name in _MAY_DIFFER},
            "umask": _umask(),
            "limits": {limit: resource.getrlimit(limit) for limit in _LIMITS},
        }
        message = json.dumps(request).encode()
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"the request has {len(message)} bytes")
        self._answers_by_s = max(self._answers_by_s, time.monotonic() + _FORKED_WITHIN_S)
        _adopt_orphans(True)
        here = os.open(".", os.O_PATH)  # also if it was renamed or removed
        try:
            with log.open("ab") as output:
                socket.send_fds(self._socket, [message], [output.fileno(), here])
        finally:
            os.close(here)

    def _answered(self, answer: dict[str, Any]) -> None:
        self._answers_by_s = time.monotonic() + _FORKED_WITHIN_S
        if "id" not in answer:
            self._is_ready = True
            return
        requested = self._pending.pop(answer["id"], None)
        if requested is None:  # the process between the server and this one was killed: the server has refused it
            if "pid" in answer:
                _kill_child(answer["pid"])
            return
        if not self._pending:
            _adopt_orphans(False)
        if "pid" in answer:
            requested.forked(answer["pid"])
        else:
            self._note(f"a process starts alone: {answer['refused']}")
            requested.refused()

    def _fault(self) -> str | None:
        """Why a server that owes an answer is given up; None if it is not."""
        assert self._process is not None
        with contextlib.suppress(psutil.Error):
            if psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED:
                return "it is stopped"
        return "it does not answer" if time.monotonic() > self._answers_by_s else None

    def _give_up(self, cause: str) -> None:
        """Ends the server; what it was asked for starts alone."""
        if not self._is_ready:
            self._starts_left = 0  # it cannot import; the processes show why
        code = self._end()
        self._note(f"the fork server is given up: {cause} (it {ended(code)})")
        for number in [*self._pending]:
            self._answered({"id": number, "refused": "the fork server is lost"})

    def _end(self) -> int | None:
        """Ends the server, and takes over the processes that it is forking. Returns its exit code."""
        if self._process is None or self._socket is None:
            return None
        self._process.kill()
        code = self._process.wait()
        self._socket.settimeout(_CLOSED_WITHIN_S)
        with contextlib.suppress(OSError):  # each process holds the socket until it has reported itself
            while answer := self._socket.recv(MAX_MESSAGE_BYTES):
                self._answered(json.loads(answer))
        self._socket.close()
        self._process = self._socket = None
        return code

    def _note(self, text: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(f"psrun: {text}\n")


def _adopt_orphans(whether: bool) -> None:
    """Sets whether this process becomes the parent of orphans among its descendants: the server forks twice."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(whether))


def _kill_child(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _umask() -> int:
    """The mask of this process; `os.umask` would change it for a moment, also for files that other threads create."""
    _, _, mask = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").partition("\nUmask:")
    return int(mask.split(maxsplit=1)[0], 8)
