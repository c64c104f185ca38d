"""This process: environment variables for TensorFlow, its output, signals, its network, and how it ends.

TensorFlow's servers listen on all interfaces without authentication. In a private network
namespace, which has only a loopback interface, no other process reaches them. Linux only; see
namespaces(7) and netdevice(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import resource
import signal
import socket
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO

import setproctitle

from psrun.errors import ConfigError, ExitCode, Interrupted, Problem, final
from psrun.tf_internals import modules
from psrun.tf_internals.modules import remove_generated_files

VARIABLES = {
    # Keras 3 has no parameter server support; tf-keras has.
    "TF_USE_LEGACY_KERAS": "1",
    # A task that cannot be reached is an error, not a silent retry for ever.
    "GRPC_FAIL_FAST": "use_caller",
    # gRPC sends even connections to this machine through the proxy of `http_proxy`. It reads this variable first, and
    # an empty one means no proxy; object stores still use the proxy of the user, since they do not use gRPC.
    "grpc_proxy": "",
    # TensorFlow never resets its counters of transient errors: the defaults (3, workers / 10) end long jobs early.
    "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES": "1000000",
    "TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS": "1000000",
}
# `python -m` puts the current folder first on the path: a folder `psrun` or a file such as `random.py` there would
# replace a module that psrun imports.
_RUN_MODULE = """\
import sys
if sys.path and not sys.path[0]:
    del sys.path[0]
import runpy
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_MIN_OPEN_FILES = 512
_HANDLED_WITHIN_S = 5.0
_UNWOUND_WITHIN_S = 25.0  # less than the 30 s after which supervisors, schedulers and container runtimes kill
_ENDED_WITHIN_S = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The supervisor's process id, set for its children: TF_CONFIG in a user's shell alone does not make a process a task.
SUPERVISOR_PID = "PSRUN_SUPERVISOR_PID"
# The process id of the sweep, set for its jobs. A job removes it, because its tasks are not children of the sweep.
SWEEP_PID = "PSRUN_SWEEP_PID"
# The first lets two servers share a port silently; the second turns a network failure into a hang without an error; the
# third makes gRPC abort the process if this machine does not have the strategy.
UNWANTED = ("TF_GRPC_REUSE_PORT", "TF_PSS_ENABLE_COORDINATION_SERVICE", "GRPC_POLL_STRATEGY")
_CLONE_NEWNET = 0x40000000
_CLONE_NEWUSER = 0x10000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ_FLAGS = "16sH22x"


def on_signals(handler: Callable[[int, Any], object]) -> None:
    """Handles Ctrl-C, SIGTERM, and SIGHUP, which a terminal sends when it is closed. Call in the main thread.

    A SIGHUP that is ignored stays so, as `nohup` has asked; child processes inherit that.
    """
    for signum in SIGNALS:
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # a task on Ray has it blocked, as Ray's processes have


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of psrun as `python -m` does, in the user's folder."""
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]


def psrun_command() -> list[str]:
    """The command `psrun` of this environment, or `python -m psrun` where it is not installed."""
    # The files of the current folder do not affect an installed command.
    installed = Path(sysconfig.get_path("scripts"), "psrun")
    return [str(installed)] if os.access(installed, os.X_OK) else [sys.executable, "-m", "psrun"]


def task_command(folder: Path) -> list[str]:
    """The command that runs a task of the run in `folder`: see `psrun.roles.run_process`."""
    return module_command("psrun.roles.run_process", str(folder))


def set_title(text: str) -> None:
    """Names this process, as `ps` and `top` show it: psrun and `text`."""
    setproctitle.setproctitle(f"psrun {text}")


def place() -> dict[str, Any]:
    """The scope of this process's ids: the host and the PID namespace, since containers number processes separately."""
    return {"host": socket.gethostname(), "pid_namespace": os.stat("/proc/self/ns/pid").st_ino}


def this_process() -> dict[str, Any]:
    """The identity of this process for other processes."""
    return {**place(), "pid": os.getpid()}


def prepare() -> None:
    """Sets the environment variables of every task, before TensorFlow is imported. Call in the main thread."""
    os.environ.update(VARIABLES)
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # of Keras 3, whatever its own file of settings says
    # NumPy's and SciPy's threads for linear algebra, one for each core and library, wait in a loop after their start
    # and after each use, 2 ** 26 cycles by default: 16 % of the processor time in which a server imports what it needs.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    for name in UNWANTED:
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited: the kernel would not keep exit codes
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def check_interpreter() -> None:
    """Raises ConfigError if Python removes docstrings, which tf-keras reads when it is imported."""
    if sys.flags.optimize > 1:
        message = "is 2 (or Python runs with -OO), which removes the docstrings that TensorFlow's Keras needs: unset it"
        raise ConfigError([Problem("PYTHONOPTIMIZE", message)])


def allow_open_files() -> None:
    """Raises the soft limit of open files if it is too low for a server; ConfigError if the hard limit is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MIN_OPEN_FILES:
        return
    if hard != resource.RLIM_INFINITY and hard < _MIN_OPEN_FILES:
        message = f"this process may open only {hard} files (ulimit -n), but a task of a cluster needs "
        raise ConfigError(f"{message}{_MIN_OPEN_FILES}; raise the limit, or choose cluster=inprocess")
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MIN_OPEN_FILES, hard))


def divert_stderr(log: Path) -> TextIO:
    """Sends file descriptor 2, where TensorFlow's C++ code and Python's warnings write, to the end of `log`.

    Returns:
      The previous standard error, for messages to the user.
    """
    before = _LastingOutput(_replace_stderr(str(log)), closefd=True)
    return io.TextIOWrapper(io.BufferedWriter(before), "utf-8", errors="backslashreplace", line_buffering=True)


def open_missing_streams() -> None:
    """Opens standard input, output and error where the caller has closed them, as `>&-` does: what is written is lost.

    Otherwise a file of the run gets the descriptor, and what libraries write to standard error goes into it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _replace_stderr(file: str) -> int:
    """Sends file descriptor 2 to the end of `file`; returns a copy of what it was."""
    sys.stderr.flush()
    before = os.dup(2)
    with open(file, "ab", buffering=0) as out:
        os.dup2(out.fileno(), 2)
    return before


class _LastingOutput(io.FileIO):
    """A file descriptor until it cannot be written, such as of a closed terminal; from then on output is dropped.

    Args:
      terminal: receives a line then; None: nobody does.
    """

    def __init__(self, descriptor: int, *, closefd: bool, terminal: TextIO | None = None) -> None:
        super().__init__(descriptor, "w", closefd=closefd)
        self._terminal = terminal

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())
            # A reader that left, such as `head`, needs no message.
            if self._terminal is not None and error.errno != errno.EPIPE:
                message = f"standard output cannot be written: {error.strerror}; the run continues without it"
                with contextlib.suppress(OSError):
                    self._terminal.write(f"psrun: {message}\n")
            return len(data)


def outlive_stdout(terminal: TextIO) -> None:
    """Keeps the process running when standard output is a closed pipe or, with a line on `terminal`, a full disk."""
    sys.stdout.flush()
    lasting = io.BufferedWriter(_LastingOutput(1, closefd=False, terminal=terminal))
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout = io.TextIOWrapper(lasting, encoding=encoding, errors="backslashreplace", line_buffering=True)


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Discards everything written to file descriptor 2 in the context."""
    before = _replace_stderr(os.devnull)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def leave_first_place() -> None:
    """Continues in a child process if this process is PID 1 of a container.

    Processes in a container cannot kill PID 1, not even when it hangs. The parent forwards signals and exits with the
    child's exit code, or with 128 plus the signal number.
    """
    if os.getpid() != 1:
        return
    child = os.fork()
    if child == 0:
        return
    on_signals(lambda number, frame: os.kill(child, number))
    while True:
        pid, status = os.wait()  # also for orphans, which fall to the first process
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def end_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent, which has the process id `parent`, ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended already
        leave(1)


def ignore_terminal() -> None:
    """Ignores Ctrl-C and the end of the terminal, which reach every process of it: the sweep forwards them."""
    before = signal.getsignal(signal.SIGTERM)
    on_signals(lambda signum, frame: None)  # not SIG_IGN, which children would inherit
    signal.signal(signal.SIGTERM, before)


def begin_worker(parent: int) -> None:
    """Begins a process in which a launcher runs jobs of a sweep: it ends with `parent`, and not by the terminal.

    Before the imports of its first job: a worker that ends meanwhile ends all others, and no job of theirs would save.
    """
    ignore_terminal()
    end_with_parent(parent)


def end_with_supervisor() -> None:
    """Asks the kernel to kill this process when its supervisor, if any, ends."""
    if SUPERVISOR_PID in os.environ:
        end_with_parent(int(os.environ[SUPERVISOR_PID]))


def end_with_sweep() -> None:
    """Asks the kernel to kill this process, if it is a job of a sweep, when the sweep ends."""
    parent = os.environ.pop(SWEEP_PID, None)
    if parent is not None:
        end_with_parent(int(parent))


def leave(code: int) -> NoReturn:
    """Exits immediately: the regular destruction of a ClusterCoordinator takes up to a minute."""
    remove_generated_files()
    modules.remove_generated_folder()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # such as on a full disk
            stream.flush()
    os._exit(code)


class Stop:
    """Handles Ctrl-C, SIGTERM and SIGHUP of this process.

    Python runs a signal handler only between two instructions of the main thread. A thread ends the process if the main
    thread does not handle a signal, since it waits in native code.

    Before `defer` is called, the first signal raises Interrupted in the main thread, and starts a timer: libraries may
    discard the exception, but the process ends. Afterwards the signal sets `requested` and starts the timer: the work
    polls `requested` and shuts down within the grace period, or the process exits. A second signal exits immediately,
    except SIGHUP: shells repeat it, and it may follow a Ctrl-C.

    Attributes:
      requested: set when the process is to end.
      signum: the signal; None before.
      reason: why it was sent, in words; empty if that is not known.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.signum: int | None = None
        self.reason = ""
        self._on_request: Callable[[], None] = lambda: None
        self._before_exit: Callable[[], None] = lambda: None
        self._record: Callable[[Interrupted], None] = lambda interrupted: None
        self._within_s: float | None = None
        self._may_insist = True

    def install(self, record: Callable[[Interrupted], None] | None = None) -> None:
        """Installs the signal handlers, and starts the thread. Call in the main thread.

        Args:
          record: called last before an immediate exit, with its reason; may raise OSError. None: nothing is recorded.
        """
        if record is not None:
            self._record = record
        self.handle()
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._insist, args=(read_end,), name="psrun-signals", daemon=True).start()

    def handle(self) -> None:
        """Installs the signal handlers only. Call in the main thread."""
        on_signals(self._handle)

    def heed(self, signum: int) -> None:
        """Handles the signal `signum` as SIGTERM."""
        signal.signal(signum, lambda _, frame: self._handle(signal.SIGTERM, frame))

    def call_on_request(self, function: Callable[[], None]) -> None:
        """Has `function` called in the main thread when a signal requests an orderly shutdown."""
        self._on_request = function

    def call_before_exit(self, function: Callable[[], None]) -> None:
        """Has `function` called right before an immediate exit."""
        self._before_exit = function

    def ignore_repeated(self) -> None:
        """Lets a second signal do nothing: a scheduler repeats its signals. A user who insists repeats SIGINT."""
        self._may_insist = False

    def defer(self, within_s: float | None) -> None:
        """Lets a signal start an orderly shutdown of at most `within_s` seconds; None: lets it raise again."""
        self._within_s = within_s

    def follow(self, signum: int = signal.SIGTERM, reason: str = "") -> None:
        """Requests a shutdown as `signum` does, because another process received the signal, or for a `reason`."""
        if self.signum is None:
            self.reason = reason
            self.signum = signum
        self.requested.set()

    def raise_if_requested(self) -> None:
        if self.signum is not None:
            raise Interrupted(self.signum, self.reason)

    def reason_of(self, error: BaseException) -> BaseException:
        """What has ended the work that raised `error`: the signal, if it arrived while signals raise.

        Interrupted is raised anywhere then, also where a library or psrun puts another exception in its place.
        """
        if self.signum is None or self._within_s is not None:
            return error
        return Interrupted(self.signum, self.reason)

    def outcome(self, code: int | None, recorded: Mapping[str, Any]) -> ExitCode:
        """The exit code of this process, which forwarded its signal to a process that ended with `code`.

        Raises:
          Interrupted: that process did not record the interruption in run.json, which has `recorded`.
        """
        assert self.signum is not None
        if (last := final(code)) is not None:  # it was done just then, or could not save
            return last
        interrupted = Interrupted(self.signum, self.reason)
        if (recorded.get("status"), recorded.get("exit_code")) != ("interrupted", interrupted.exit_code):
            raise interrupted
        return interrupted.exit_code

    def _insist(self, arrivals: int) -> None:
        """Ends the process if a signal is not handled in time. Reads the numbers of signals from a pipe."""
        while numbers := os.read(arrivals, 1):
            signum = signal.Signals(numbers[0])
            if signum not in SIGNALS or self.signum is not None:
                continue
            handled_by_s = time.monotonic() + (self._within_s or _HANDLED_WITHIN_S)
            while self.signum is None and time.monotonic() < handled_by_s:
                time.sleep(0.05)
            if self.signum is None:
                self._end(signum)

    def _handle(self, signum: int, frame: Any) -> None:
        if self.signum is not None:
            insists = signum == self.signum == signal.SIGINT
            if insists or (self._may_insist and signum != signal.SIGHUP):
                self._end(signum)
            return
        self.signum = signum
        self.requested.set()
        if self._within_s is None:
            _start_clock(_UNWOUND_WITHIN_S, self._end, signum)
            raise Interrupted(signum)
        _start_clock(self._within_s, self._end, signum)
        self._on_request()

    def _end(self, signum: int) -> None:
        interrupted = Interrupted(signum)
        _start_clock(_ENDED_WITHIN_S, os._exit, interrupted.exit_code)  # a disk may not answer
        try:
            self._before_exit()
        finally:  # even if that fails
            try:
                self._record(interrupted)
            finally:  # the disk may be full
                modules.remove_generated_folder()
                os._exit(interrupted.exit_code)


def _start_clock(after_s: float, end: Callable[[int], None], argument: int) -> None:
    clock = threading.Timer(after_s, end, [argument])
    clock.daemon = True
    clock.start()


def isolate() -> str | None:
    """Moves this process, and all its later children, into a new network namespace with a loopback interface.

    Call before starting threads: only the calling thread moves, and for users other than root there may be no other.

    Returns:
      None, or the reason why it was not possible; then nothing has changed.
    """
    uid = os.geteuid()
    gid = os.getegid()
    try:
        if uid == 0:
            _unshare(_CLONE_NEWNET)
        else:
            # Users other than root need a user namespace in which they are root; it maps to their identity outside.
            _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
        _bring_up("lo")
    except (OSError, AttributeError) as error:
        return str(error)
    return None


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _bring_up(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name = interface.encode()
        _, flags = struct.unpack(_IFREQ_FLAGS, fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack(_IFREQ_FLAGS, name, 0)))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack(_IFREQ_FLAGS, name, flags | _IFF_UP))
