"""A task of tf.data service: serves until the run is over, a signal arrives, or the chief is lost for too long."""

from __future__ import annotations

import os
import time

from psrun.cluster import data_service
from psrun.config.topology import Topology
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.run_folder import RunFolder
from psrun.roles.server import ChiefProbe

_POLL_S = 0.5
_END_WITHIN_S = 5.0


def run(topology: Topology, folder: RunFolder, stop: Stop, *, chief_timeout_s: float) -> None:
    """Serves.

    Args:
      chief_timeout_s: how long to wait for a missing chief.

    Raises:
      ServerStartError: the port is taken.
      ChiefGoneError: the chief has been missing for too long.
    """
    stop.defer(_END_WITHIN_S)
    me = topology.me
    chief = ChiefProbe(topology, timeout_s=chief_timeout_s)
    begun = False
    heartbeat = task_files.HeartbeatWriter(
        folder.path, me, lambda: task_files.Heartbeat(os.getpid(), time.time(), "serving")
    )
    data_service.serve(topology, task_files.shared(folder.path) / str(me))
    heartbeat.start()
    try:
        while not stop.requested.wait(_POLL_S):
            # Not a TensorFlow server that the chief could signal: read from run.json. The status of an earlier process
            # of a resumed run does not count.
            status = folder.stored().get("status")
            begun = begun or status == "running"
            if begun and status == "completed":
                return
            chief.check()
    finally:
        heartbeat.stop()
