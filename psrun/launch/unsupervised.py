"""The watch over a cluster without a supervisor: the chief's over its servers, and a guard's over the chief.

TensorFlow waits without a bound for a server that is stopped or disconnected: connections stay open, and a stopped
process still accepts new ones, but does not answer. TensorFlow also retries without a bound to reach a parameter server
that has exited.

The guard is a separate process: `python -m psrun.launch.unsupervised`. TensorFlow sends new functions to all workers
with Python's global lock held. A worker that hangs at that moment stops every thread of the chief, including the one
that would detect it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from psrun import process
from psrun.cluster.probe import ServerStatus, answering, peers, sever
from psrun.config import choices
from psrun.config.topology import CHIEF, Task, Topology
from psrun.errors import PsrunError, TaskLostError
from psrun.launch.losses import HangDetector, Recoveries, Silence, TrainingStatus, not_heard_of
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder

_LOG = logging.getLogger(__name__)
_EVERY_S = 1.0
ANSWER_WITHIN_S = 2.0
_ASK_AGAIN_S = 0.05
_CLOSED_WITHIN_S = 5.0
_HELD_UP_S = 10.0  # longer than a round: three questions to each server, and a connection cut
_BEAT_S = 0.5
_BEATS_HELD_UP_S = 3.0
_WRITES_STACKS = signal.SIGUSR2
_STACKS_WITHIN_S = 1.0


class Watch:
    """Queries the status of every server once a second, in a separate thread.

    TensorFlow detects workers that exit, and lets them rejoin. A worker that does not answer for `heartbeat_timeout_s`
    is dropped: this process closes its connections to it, so that TensorFlow gives its steps to the others and lets it
    rejoin when it answers again. The run ends if a parameter server is lost or was restarted without its variables, if
    no worker is left, or if there is no progress for too long.

    Args:
      ask: returns the status of servers, given with their addresses.
      training: returns its current status; must not block.
      give_up: ends the process with an error, whatever its other threads are doing.
    """

    def __init__(
        self,
        cluster: choices.Unsupervised,
        topology: Topology,
        reporter: Reporter,
        recoveries: Recoveries,
        *,
        ask: Callable[[Mapping[Task, str]], Mapping[Task, ServerStatus]],
        training: Callable[[], TrainingStatus],
        give_up: Callable[[PsrunError], None],
    ) -> None:
        self._cluster = cluster
        self._reporter = reporter
        self._recoveries = recoveries
        self._addresses = topology.servers()
        # Resolved now: the host name of a lost node may no longer resolve.
        self._peers = {task: peers(address) for task, address in self._addresses.items()}
        self._ask = ask
        self._training = training
        self._give_up = give_up
        now_s = time.monotonic()
        self._silences = {task: Silence(now_s, held_up_s=_HELD_UP_S) for task in self._addresses}
        self._detector = HangDetector(cluster, now_s, held_up_s=_HELD_UP_S)
        self._incarnations: dict[Task, int] = {}
        self._lost: set[Task] = set()
        self._error: TaskLostError | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psrun-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(2 * ANSWER_WITHIN_S)

    def check_parameter_servers(self) -> None:
        """Call when a step has failed. Raises TaskLostError if a parameter server has exited or was restarted.

        Asks again, for `_CLOSED_WITHIN_S`, while one neither answers nor refuses: the kernel takes a moment to close
        the port of a process that was killed, and its workers see the end before.
        """
        servers = {task: address for task, address in self._addresses.items() if task.job == "ps"}
        began_s = time.monotonic()
        while True:
            statuses = self._ask(servers)
            with self._lock:
                self._find_lost(statuses)
            if all(status.answers for status in statuses.values()) or time.monotonic() > began_s + _CLOSED_WITHIN_S:
                return
            time.sleep(_ASK_AGAIN_S)

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            try:
                statuses = self._ask(self._addresses)
                if self._ended.is_set():
                    return
                with self._lock:
                    self._look(statuses)
            except PsrunError as error:
                self._give_up(error)
            except Exception:  # such as a full disk: the watch must continue
                _LOG.exception("error in the watch over servers")

    def _look(self, statuses: Mapping[Task, ServerStatus]) -> None:
        now_s = time.monotonic()
        training = self._training()
        up = {task for task, status in statuses.items() if status.answers}
        for task in up:
            self._silences[task].reset(now_s)
        if self._lost & up:
            self._detector.progressed(now_s)
        self._find_lost(statuses)
        self._lost -= up
        self._recoveries.look(training, lambda task: task in up or task == CHIEF)
        workers = [task for task in self._addresses if task.job == "worker"]
        limit_s = self._cluster.connect_timeout_s
        are_silent = [self._silences[task].exceeds(limit_s, now_s) for task in workers]  # a look at each of them
        if all(are_silent):
            names = ", ".join(map(str, workers))
            raise TaskLostError(f"no worker ({names}) has answered for {limit_s:.0f} s")
        if cause := self._detector.progress_fault(training, now_s):
            raise TaskLostError(f"{CHIEF} {cause}")

    def _find_lost(self, statuses: Mapping[Task, ServerStatus]) -> None:
        """Records newly lost servers; raises TaskLostError if one of them is a parameter server."""
        if self._error is not None:
            raise self._error
        for task, status in statuses.items():
            cause = None if task in self._lost else self._cause(task, status)
            if cause is not None:
                self._failed(task, status, cause)
            if status.incarnation is not None:
                self._incarnations[task] = status.incarnation

    def _cause(self, task: Task, status: ServerStatus) -> str | None:
        """Why a server counts as lost; None if it does not."""
        address = self._addresses[task]
        silence = self._silences[task]
        hangs = silence.exceeds(self._cluster.heartbeat_timeout_s, time.monotonic())
        if status.refused:
            return f"has ended: nothing listens at {address} (connection refused)"
        if status.incarnation not in (None, self._incarnations.get(task, status.incarnation)):
            return f"was started again at {address}"
        if hangs and not status.answers:
            return f"hangs or is cut off: has not answered at {address} for {silence.lasted_s:.0f} s"
        return None

    def _failed(self, task: Task, status: ServerStatus, cause: str) -> None:
        step = self._training().step or 0
        needed = task.job == "ps"
        action = "the run ends" if needed else "its steps go to other workers"
        self._reporter.emit("failure", step=step, task=str(task), cause=cause, action=action)
        if needed:
            lost = ", and with it the variables that it held" if status.answers else ""
            self._error = TaskLostError(f"{task} {cause}{lost}; start ps and chief again", task=str(task))
            raise self._error
        self._lost.add(task)
        self._detector.progressed(time.monotonic())
        self._recoveries.failed(task, cause, step=step, attempt=False)
        if not (status.answers or status.refused):
            sever(self._peers[task] | peers(self._addresses[task]))


def start_guard(folder: Path, terminal: TextIO, *, timeout_s: float, servers: Mapping[Task, str]) -> None:
    """Starts the guard of this process and a thread that sends it beats through a pipe. It ends with this process.

    Args:
      folder: of the run.
      terminal: receives the reason if this process is killed.
      timeout_s: a chief without beats for this long counts as hung.
      servers: addresses (HOST:PORT) of the servers, to name those that do not answer.
    """
    faulthandler.register(_WRITES_STACKS)  # to the log, by native code: Python's lock is not needed
    beats, ours = os.pipe()
    pairs = [f"{task}={address}" for task, address in servers.items()]
    command = process.module_command("psrun.launch.unsupervised", str(os.getpid()), str(folder), str(timeout_s), *pairs)
    subprocess.Popen(command, stdin=beats, stderr=terminal, start_new_session=True)
    os.close(beats)

    def beat() -> None:
        with contextlib.suppress(BrokenPipeError):
            while os.write(ours, b"."):
                time.sleep(_BEAT_S)

    threading.Thread(target=beat, name="psrun-beats", daemon=True).start()


def _until_it_hangs(timeout_s: float) -> str | None:
    """Reads beats from standard input; returns the cause of the loss, or None once the chief has exited."""
    silence = Silence(time.monotonic(), held_up_s=_BEATS_HELD_UP_S)
    while True:
        if select.select([0], [], [], 2 * _BEAT_S)[0]:
            if not os.read(0, 4096):
                return None
            silence.reset(time.monotonic())
        elif silence.exceeds(timeout_s, time.monotonic()):
            return not_heard_of(silence)


def main() -> None:
    """Kills the chief if it hangs, after it has logged the stacks of its threads.

    Its exit code, 137, requests a restart, as all from 128 on.
    """
    chief = int(sys.argv[1])
    folder = Path(sys.argv[2])
    timeout_s = float(sys.argv[3])
    pairs = sys.argv[4:]
    process.end_with_parent(chief)
    cause = _until_it_hangs(timeout_s)
    if cause is None:
        return
    servers = dict(name.split("=", 1) for name in pairs)
    up = answering(servers, timeout_s=2.0)
    silent = ", ".join(task for task in servers if task not in up)
    message = f"{CHIEF} {cause}"
    if silent:
        message += f"; no answer from {silent}"
    os.kill(chief, _WRITES_STACKS)
    time.sleep(_STACKS_WITHIN_S)
    os.kill(chief, signal.SIGSTOP)  # so that it does not overwrite what is recorded here
    try:
        result = RunFolder(folder)
        error = {"type": "TaskLostError", "message": message, "task": str(CHIEF)}
        result.emit("ended", status="failed", exit_code=128 + signal.SIGKILL, error=error)
        sys.stderr.write(f"psrun: {message}\n(log: {result.log(str(CHIEF))})\n")
        sys.stderr.flush()
    finally:
        os.kill(chief, signal.SIGKILL)


if __name__ == "__main__":
    main()
