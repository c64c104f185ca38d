"""A worker or parameter server: serves until the run ends, a signal stops it, or the chief is gone for good.

It imports no more of TensorFlow than its server needs: see `tf_internals.modules.import_for_servers`.
"""

from __future__ import annotations

import os
import time
from typing import Any

from psrun.cluster import servers
from psrun.cluster.probe import reachable
from psrun.cluster.run_over import RunOverSignal
from psrun.config.topology import CHIEF, Topology
from psrun.errors import ChiefGoneError
from psrun.launch.hang_detector import Silence
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.run_folder import RunFolder

_POLL_S = 0.25
_PROBE_EVERY_S = 2.0
_END_WITHIN_S = 5.0

_servers: list[Any] = []  # live as long as the process


class Presence:
    """Whether the chief is there, looked at every two seconds.

    Args:
      timeout_s: how long it may have gone, or not have been there yet.
    """

    def __init__(self, topology: Topology, *, timeout_s: float) -> None:
        self._me, self._chief, self._timeout_s = topology.me, topology.addresses.get(CHIEF), timeout_s
        self._probed_s = time.monotonic()
        self._silence = Silence(self._probed_s, held_up_s=2 * _PROBE_EVERY_S)

    def look(self) -> None:
        """Raises ChiefGoneError where it has been gone for too long."""
        now_s = time.monotonic()
        if self._chief is None or now_s - self._probed_s < _PROBE_EVERY_S:
            return
        self._probed_s = now_s
        if reachable(self._chief, timeout_s=1.0):
            self._silence.reset(now_s)
        elif self._silence.seconds(now_s) > self._timeout_s:
            message = f"no chief at {self._chief} for {self._timeout_s:.0f} s; {self._me} ends"
            raise ChiefGoneError(message, task=str(self._me))


def run(
    topology: Topology, folder: RunFolder, stop: Stop, *, chief_timeout_s: float, num_replicas: int | None = None
) -> None:
    """Serves.

    Args:
      chief_timeout_s: how long to wait for a chief that was never there, or that has gone.
      num_replicas: of each worker, as in `servers.devices`.

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
    _servers.append(servers.start(topology.spec(), me.job, me.index, num_replicas))
    heart.start()
    chief = Presence(topology, timeout_s=chief_timeout_s)
    try:
        while not stop.requested.wait(_POLL_S) and not told:
            chief.look()
    finally:
        heart.stop()
        told.close()
