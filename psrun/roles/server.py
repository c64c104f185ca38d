"""A worker or parameter server: serves until the run ends, a signal stops it, or the chief is gone for good."""

from __future__ import annotations

import os
import threading
import time

import tensorflow as tf

from psrun.cluster.inprocess import start_server
from psrun.cluster.probe import reachable
from psrun.config.topology import CHIEF, Task, Topology
from psrun.errors import ChiefGoneError
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.run_folder import RunFolder

_POLL_S = 0.25
_PROBE_EVERY_S = 2.0
_END_WITHIN_S = 5.0
_TELL_WITHIN_S = 3.0
_TOLD = 250  # the number, agreed on by all tasks, of the file that a server is told by; no process has so many so early

_servers: list[tf.distribute.Server] = []  # lives as long as the process


def tell_servers(topology: Topology) -> None:
    """Tells every server that the run is over. Needs no folder that is shared.

    Call in the chief, while it is connected. A server that has gone meanwhile is passed over; what takes longer than a
    few seconds is left, and the servers find out for themselves that the chief has gone.
    """
    threads = [threading.Thread(target=_tell, args=(task,), daemon=True) for task in topology.servers()]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _TELL_WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _tell(task: Task) -> None:
    with tf.device(f"/job:{task.job}/replica:0/task:{task.index}/device:CPU:0"):
        try:
            tf.function(tell)()
        except tf.errors.OpError as error:
            tf.get_logger().warning("%s could not be told that the run is over: %s", task, error)


def tell() -> None:
    """Tells the process that runs it. It takes nothing: a tensor for a worker that came back can hang, lock held."""
    tf.io.write_file(f"/proc/self/fd/{_TOLD}", "over")


class RunOverSignal:
    """Whether this process was told that the run is over, by `tell` run here by a chief.

    It is told through a file that has no name, and so not by the chief of another run: servers of two runs on one
    machine, each in a network of its own, may well have the same address.
    """

    def __init__(self) -> None:
        unnamed = os.memfd_create("psrun-over")
        os.dup2(unnamed, _TOLD, inheritable=False)
        os.close(unnamed)

    def __bool__(self) -> bool:
        return os.fstat(_TOLD).st_size > 0

    def close(self) -> None:
        os.close(_TOLD)


class Presence:
    """Whether the chief is there, looked at every two seconds.

    Args:
      timeout_s: how long it may have gone, or not have been there yet.
    """

    def __init__(self, topology: Topology, *, timeout_s: float) -> None:
        self._me, self._chief, self._timeout_s = topology.me, topology.addresses.get(CHIEF), timeout_s
        self._seen_s = self._probed_s = time.monotonic()

    def look(self) -> None:
        """Raises ChiefGoneError where it has been gone for too long."""
        now_s = time.monotonic()
        if self._chief is None or now_s - self._probed_s < _PROBE_EVERY_S:
            return
        self._probed_s = now_s
        if reachable(self._chief, timeout_s=1.0):
            self._seen_s = now_s
        elif now_s - self._seen_s > self._timeout_s:
            message = f"no chief at {self._chief} for {self._timeout_s:.0f} s; {self._me} ends"
            raise ChiefGoneError(message, task=str(self._me))


def run(
    topology: Topology, folder: RunFolder, stop: Stop, *, chief_timeout_s: float, num_replicas: int | None = None
) -> None:
    """Serves.

    Args:
      chief_timeout_s: how long to wait for a chief that was never there, or that has gone.
      num_replicas: of each worker, as in `devices.of_replicas`.

    Raises:
      ServerStartError: the port is taken.
      ChiefGoneError: there has been no chief for too long.
    """
    stop.defer(_END_WITHIN_S)
    me = topology.me
    told = RunOverSignal()
    heart = task_files.HeartbeatWriter(
        folder.path, me, lambda: task_files.Heartbeat(os.getpid(), time.time(), "serving")
    )
    _servers.append(start_server(tf.train.ClusterSpec(topology.spec()), me.job, me.index, num_replicas))
    heart.start()
    chief = Presence(topology, timeout_s=chief_timeout_s)
    try:
        while not stop.requested.wait(_POLL_S) and not told:
            chief.look()
    finally:
        heart.stop()
        told.close()
