"""This process: environment variables that TensorFlow needs, where its output goes, signals, and how it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO

from psrun.errors import ExitCode, Interrupted

VARIABLES = {
    # Keras 3 has no parameter server support; tf-keras has.
    "TF_USE_LEGACY_KERAS": "1",
    # A task that cannot be reached is an error, not a silent retry for ever.
    "GRPC_FAIL_FAST": "use_caller",
    # Counters of transient errors that never go back: the defaults (3, workers / 10) end a long job on its third blip.
    "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES": "1000000",
    "TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS": "1000000",
}
# The supervisor's process id, set for its children: a TF_CONFIG that merely stands in somebody's shell makes no task.
SUPERVISOR_PID = "PSRUN_SUPERVISOR_PID"
# The process id of what runs a job of a sweep, set for that job, which takes it out: its own tasks are not the sweep's.
SWEEP_PID = "PSRUN_SWEEP_PID"
# Two servers would share one port in silence; with the coordination service a cut network hangs without an error.
UNWANTED = ("TF_GRPC_REUSE_PORT", "TF_PSS_ENABLE_COORDINATION_SERVICE")

_OF_AUTOGRAPH = "__autograph_generated_file"  # modules that TensorFlow writes to the folder for temporary files


def task_command(folder: Path) -> list[str]:
    """The command that runs what the run folder `folder` holds: see `psrun.roles`."""
    return [sys.executable, "-m", "psrun.roles", str(folder)]


def place() -> dict[str, Any]:
    """Where process ids mean what they mean to this process: a host may have containers that count for themselves."""
    return {"host": socket.gethostname(), "pid_namespace": os.stat("/proc/self/ns/pid").st_ino}


def this_process() -> dict[str, Any]:
    """How others find this process."""
    return {**place(), "pid": os.getpid()}


def prepare() -> None:
    """Sets the environment variables of every task. Call before TensorFlow is imported."""
    os.environ.update(VARIABLES)
    for name in UNWANTED:
        os.environ.pop(name, None)


def divert_stderr(log: Path) -> TextIO:
    """Sends file descriptor 2, where TensorFlow's C++ code and Python's warnings write, to the end of `log`.

    Returns:
      The standard error that there was, for messages to the person at the terminal.
    """
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    return terminal


class _LastingStdout(io.FileIO):
    """File descriptor 1 until it cannot be written; from then on output is dropped."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__(1, "w", closefd=False)
        self._terminal = terminal

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)
            if error.errno != errno.EPIPE:  # a reader that left, such as `head`, needs no message
                message = f"standard output cannot be written: {error.strerror}; the run continues without it"
                self._terminal.write(f"psrun: {message}\n")
            return len(data)


def outlive_stdout(terminal: TextIO) -> None:
    """From now on a closed pipe or a full disk behind standard output ends nothing.

    Args:
      terminal: takes one line that names the error; none for a closed pipe.
    """
    sys.stdout.flush()
    lasting = io.BufferedWriter(_LastingStdout(terminal))
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout = io.TextIOWrapper(lasting, encoding=encoding, errors="backslashreplace", line_buffering=True)


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """What is written to file descriptor 2 meanwhile is lost."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def leave_first_place() -> None:
    """Where this process is the first of a container, goes on as a child of it.

    The kernel lets nobody in a container kill its first process, not even one that hangs. What stays behind passes
    signals on, and ends with the child's exit code, 128 and the signal's number where one killed it.
    """
    if os.getpid() != 1:
        return
    child = os.fork()
    if child == 0:
        return
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, frame: os.kill(child, number))
    while True:
        pid, status = os.wait()  # also for orphans, which fall to the first process
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def end_with_parent(parent: int) -> None:
    """From now on the kernel kills this process when its parent, of that process id, has ended, however it did."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended already
        leave(1)


def end_with_supervisor() -> None:
    """From now on the kernel kills this process when its supervisor, if it has one, has ended."""
    if SUPERVISOR_PID in os.environ:
        end_with_parent(int(os.environ[SUPERVISOR_PID]))


def end_with_sweep() -> None:
    """From now on the kernel kills this process when what runs it, if it is a job of a sweep, has ended."""
    parent = os.environ.pop(SWEEP_PID, None)
    if parent is not None:
        end_with_parent(int(parent))


def leave(code: int) -> NoReturn:
    """Ends the process now. Letting go of a ClusterCoordinator the ordinary way takes up to a minute."""
    for name in [name for name in sys.modules if name.startswith(_OF_AUTOGRAPH)]:  # TensorFlow removes them at exit
        with contextlib.suppress(OSError, TypeError):
            os.unlink(sys.modules[name].__file__)  # type: ignore[arg-type]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Stop:
    """Ctrl-C and SIGTERM of this process.

    Until `defer` is called the first signal raises Interrupted wherever the main thread is. After it, the signal only
    sets `requested`, calls `on_request`, and starts a clock: whoever works looks at `requested` and ends in good order
    within the time given, or the process ends without it. A second signal ends the process at once.

    Attributes:
      requested: set once the process is to end.
      signum: by which signal; None before.
      on_request: called in the main thread when the signal comes.
      at_once: called right before the process ends without good order.
      record: called after it, with the reason; may raise OSError.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.signum: int | None = None
        self.on_request: Callable[[], None] = lambda: None
        self.at_once: Callable[[], None] = lambda: None
        self.record: Callable[[Interrupted], None] = lambda interrupted: None
        self._within_s: float | None = None
        self._may_insist = True

    def install(self) -> None:
        """Takes over the process's signals."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._handle)

    def heed(self, signum: int) -> None:
        """Takes that signal for a SIGTERM too."""
        signal.signal(signum, lambda _, frame: self._handle(signal.SIGTERM, frame))

    def defer(self, within_s: float, *, may_insist: bool = True) -> None:
        """From now on signals wait for good order, `within_s` seconds at most.

        Args:
          may_insist: whether a second signal ends the process at once, as a person wants; a scheduler may say the same
            thing twice.
        """
        self._within_s, self._may_insist = within_s, may_insist

    def follow(self) -> None:
        """Ends as if this process had been asked with SIGTERM: another one was."""
        self.signum = self.signum or signal.SIGTERM
        self.requested.set()

    def raise_if_requested(self) -> None:
        if self.signum is not None:
            raise Interrupted(self.signum)

    def outcome(self, code: int | None, recorded: Mapping[str, Any]) -> ExitCode:
        """The exit code of a process that has passed its signal on to the one that does the work, which has ended.

        Args:
          code: the exit code of that process; negative for a signal.
          recorded: run.json as that process left it.

        Raises:
          Interrupted: that process has not recorded that the run was ended by this signal.
        """
        assert self.signum is not None
        if code in (ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE):  # it was done just then, or could not save
            return ExitCode(code)
        interrupted = Interrupted(self.signum)
        if (recorded.get("status"), recorded.get("exit_code")) != ("interrupted", interrupted.exit_code):
            raise interrupted
        return interrupted.exit_code

    def _handle(self, signum: int, frame: Any) -> None:
        if self.signum is not None:
            if self._may_insist:
                self._end(signum)
            return
        self.signum = signum
        self.requested.set()
        if self._within_s is None:
            raise Interrupted(signum)
        clock = threading.Timer(self._within_s, self._end, [signum])
        clock.daemon = True
        clock.start()
        self.on_request()

    def _end(self, signum: int) -> None:
        interrupted = Interrupted(signum)
        try:
            self.at_once()
        finally:  # there may be nobody any more whom to end
            try:
                self.record(interrupted)
            finally:  # the disk may be full
                os._exit(interrupted.exit_code)
