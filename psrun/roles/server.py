"""A worker or parameter server: serves until the run is over, it is told to stop, or the chief is gone for good."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import tensorflow as tf

from psrun.cluster import files
from psrun.cluster.inprocess import start_server
from psrun.cluster.probe import reachable
from psrun.cluster.topology import CHIEF, Task, Topology
from psrun.errors import ChiefGoneError
from psrun.reporting.run_folder import RunFolder
from psrun.stop import Stop

_POLL_S = 0.25
_PROBE_EVERY_S = 2.0
_END_WITHIN_S = 5.0
_TELL_WITHIN_S = 3.0

_servers: list[tf.distribute.Server] = []  # lives as long as the process


def tell_servers(topology: Topology) -> None:
    """Tells every server that the run is over. Needs no folder that is shared: the files are written by the servers.

    Call in the chief, while it is connected. A server that has gone meanwhile is passed over; what takes longer than a
    few seconds is left, and the servers find out for themselves that the chief has gone.
    """
    threads = [threading.Thread(target=_tell, args=server, daemon=True) for server in topology.servers().items()]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _TELL_WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _tell(task: Task, address: str) -> None:
    # A function without arguments: a tensor copied to a worker that came back after a failure can hang, lock held.
    @tf.function
    def tell() -> None:
        tf.io.write_file(str(files.over_marker(address)), "over")

    with tf.device(f"/job:{task.job}/replica:0/task:{task.index}/device:CPU:0"):
        try:
            tell()
        except tf.errors.OpError as error:
            tf.get_logger().warning("%s could not be told that the run is over: %s", task, error)


def _is_own(marker: Path) -> bool:
    """Whether the marker is there, and was not put there by another user."""
    try:
        return marker.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def run(topology: Topology, folder: RunFolder, stop: Stop, *, chief_timeout_s: float) -> None:
    """Serves.

    Args:
      chief_timeout_s: how long to wait for a chief that was never there, or that has gone.

    Raises:
      ServerStartError: the port is taken.
      ChiefGoneError: there has been no chief for too long.
    """
    stop.defer(_END_WITHIN_S)
    me = topology.me
    marker = files.over_marker(topology.addresses[me])
    marker.unlink(missing_ok=True)
    heart = files.Heart(folder.path, me, lambda: files.Heartbeat(os.getpid(), time.time(), "serving"))
    _servers.append(start_server(tf.train.ClusterSpec(topology.spec()), me.job, me.index))
    heart.start()
    chief = topology.addresses.get(CHIEF)
    seen_s = probed_s = time.monotonic()
    try:
        while not stop.requested.wait(_POLL_S) and not _is_own(marker):
            now_s = time.monotonic()
            if chief is None or now_s - probed_s < _PROBE_EVERY_S:
                continue
            probed_s = now_s
            if reachable(chief, timeout_s=1.0):
                seen_s = now_s
            elif now_s - seen_s > chief_timeout_s:
                raise ChiefGoneError(f"no chief at {chief} for {chief_timeout_s:.0f} s; {me} ends", task=str(me))
    finally:
        heart.stop()
        marker.unlink(missing_ok=True)
