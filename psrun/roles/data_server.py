"""A task of tf.data service: serves until the run ends, a signal stops it, or the chief is gone for good."""

from __future__ import annotations

import os
import time

from psrun.cluster import data_service
from psrun.config.topology import Topology
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.run_folder import RunFolder
from psrun.roles.server import Presence

_POLL_S = 0.5
_END_WITHIN_S = 5.0


def run(topology: Topology, folder: RunFolder, stop: Stop, *, chief_timeout_s: float) -> None:
    """Serves.

    Args:
      chief_timeout_s: how long to wait for a chief that was never there, or that has gone.

    Raises:
      ServerStartError: the port is taken.
      ChiefGoneError: there has been no chief for too long.
    """
    stop.defer(_END_WITHIN_S)
    me, chief, begun = topology.me, Presence(topology, timeout_s=chief_timeout_s), False
    heart = task_files.HeartbeatWriter(
        folder.path, me, lambda: task_files.Heartbeat(os.getpid(), time.time(), "serving")
    )
    data_service.start(topology, task_files.shared(folder.path) / str(me))
    heart.start()
    try:
        while not stop.requested.wait(_POLL_S):
            # No TensorFlow server, which the chief could tell: the run's folder does. What it says of a run before this
            # one, which goes on, does not count.
            status = folder.stored().get("status")
            begun = begun or status == "running"
            if begun and status == "completed":
                return
            chief.look()
    finally:
        heart.stop()
