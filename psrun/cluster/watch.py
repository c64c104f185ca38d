"""The chief's watch over servers that nobody supervises: which of them hang or are cut off, and what then.

TensorFlow itself waits without an end for a server that is stopped or behind a network that is cut: its connections
stay open, and a stopped process still accepts new ones. What it does not do is answer in them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from psrun import choices
from psrun.cluster.probe import answering, peers, sever
from psrun.cluster.recoveries import Recoveries, Sign
from psrun.cluster.topology import Task, Topology
from psrun.errors import PsrunError, TaskLostError
from psrun.reporting.events import Reporter

_LOG = logging.getLogger(__name__)
_EVERY_S = 1.0
_ANSWER_WITHIN_S = 2.0


def progress_limit_s(limits: choices.Restart | choices.Unsupervised, slowest_step_s: float | None) -> float:
    """How long no step may be applied before that is a hang."""
    return max(limits.progress_timeout_s, limits.progress_factor * (slowest_step_s or 0.0))


class Watch:
    """Asks every server once a second whether it answers, from a thread of its own.

    A worker that has not answered for `heartbeat_timeout_s` is left behind: this process closes its connections to it,
    TensorFlow takes it for lost, gives its steps to the others, and takes it back when it answers again. Without a
    parameter server, without any worker, or without a step for too long the run cannot go on.

    Args:
      sign: what the training shows now; must not block.
      give_up: ends the process with an error, whatever its other threads are doing.
    """

    def __init__(
        self,
        cluster: choices.Unsupervised,
        topology: Topology,
        reporter: Reporter,
        recoveries: Recoveries,
        *,
        sign: Callable[[], Sign],
        give_up: Callable[[PsrunError], None],
    ) -> None:
        self._cluster, self._reporter, self._recoveries = cluster, reporter, recoveries
        self._addresses = topology.servers()
        # Now: the name of a host that has gone is often gone with it.
        self._peers = {task: peers(address) for task, address in self._addresses.items()}
        self._sign, self._give_up = sign, give_up
        now_s = time.monotonic()
        self._heard_s = dict.fromkeys(self._addresses, now_s)
        self._lost: set[Task] = set()
        self._said, self._said_s = sign(), now_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psrun-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(2 * _ANSWER_WITHIN_S)

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            began_s = time.monotonic()
            up = answering(self._addresses, timeout_s=_ANSWER_WITHIN_S)
            if self._ended.is_set():
                return
            self._heard_s |= dict.fromkeys(up, began_s)
            try:
                self._look(up)
            except PsrunError as error:
                self._give_up(error)
            except Exception:  # such as a full disk's: whatever it is, the watch must go on
                _LOG.exception("looking after the servers")

    def _look(self, up: set[Task]) -> None:
        now_s, sign = time.monotonic(), self._sign()
        step, silent_s = sign.step or 0, {task: now_s - heard_s for task, heard_s in self._heard_s.items()}
        if self._lost & up:
            self._lost -= up
            self._said_s = now_s
        for task, silent in silent_s.items():
            if task in up or silent <= self._cluster.heartbeat_timeout_s or task in self._lost:
                continue
            cause = f"hangs or is cut off: has not answered at {self._addresses[task]} for {silent:.0f} s"
            action = "the run ends" if task.job == "ps" else "its steps go to other workers"
            self._reporter.emit("failure", step=step, task=str(task), cause=cause, action=action)
            if task.job == "ps":
                raise TaskLostError(f"{task} {cause}", task=str(task))
            self._lost.add(task)
            self._said_s = now_s
            self._recoveries.failed(task, cause, step=step, attempt=False)
            sever(self._peers[task] | peers(self._addresses[task]))
        self._recoveries.look(sign, lambda task: task in up)
        workers = [task for task in self._addresses if task.job == "worker"]
        if min(silent_s[task] for task in workers) > self._cluster.connect_timeout_s:
            named = ", ".join(map(str, workers))
            raise TaskLostError(f"no worker ({named}) has answered for {self._cluster.connect_timeout_s:.0f} s")
        self._look_at_progress(sign, now_s)

    def _look_at_progress(self, sign: Sign, now_s: float) -> None:
        if sign != self._said:
            self._said, self._said_s = sign, now_s
        limit_s = progress_limit_s(self._cluster, sign.slowest_step_s)
        if sign.state != "training":
            limit_s = max(limit_s, self._cluster.start_timeout_s)
        if now_s - self._said_s > limit_s:
            raise TaskLostError(f"no progress: {sign.state} at step {sign.step or 0} for {limit_s:.0f} s")
