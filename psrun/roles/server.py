"""A worker or parameter server: serves until the run is over, a signal arrives, or the chief is lost for too long.

It imports no more of TensorFlow than a server needs: see `tf_internals.modules.import_for_servers`.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from psrun.cluster import servers
from psrun.cluster.probe import reachable
from psrun.cluster.servers import RunOverSignal
from psrun.config.topology import CHIEF, Topology
from psrun.errors import ChiefGoneError
from psrun.launch.losses import Silence
from psrun.process import Stop, allow_open_files
from psrun.results import task_files
from psrun.results.run_folder import RunFolder

_POLL_S = 0.25
_PROBE_EVERY_S = 2.0
_END_WITHIN_S = 5.0

_servers: list[Any] = []  # kept for the life of the process


class ChiefProbe:
    """Probes the chief every two seconds.

    Args:
      timeout_s: how long the chief may be missing, also at the start.
    """

    def __init__(self, topology: Topology, *, timeout_s: float) -> None:
        self._me = topology.me
        self._chief = topology.addresses.get(CHIEF)
        self._timeout_s = timeout_s
        self._probed_s = time.monotonic()
        self._silence = Silence(self._probed_s, held_up_s=2 * _PROBE_EVERY_S)

    def check(self) -> None:
        """Raises ChiefGoneError if the chief has been missing for too long."""
        now_s = time.monotonic()
        if self._chief is None or now_s - self._probed_s < _PROBE_EVERY_S:
            return
        self._probed_s = now_s
        if reachable(self._chief, timeout_s=1.0):
            self._silence.reset(now_s)
        elif self._silence.exceeds(self._timeout_s, now_s):
            message = f"no chief at {self._chief} for {self._timeout_s:.0f} s; {self._me} exits"
            raise ChiefGoneError(message, task=str(self._me))


def run(
    topology: Topology,
    folder: RunFolder,
    stop: Stop,
    *,
    chief_timeout_s: float,
    num_replicas: int | None = None,
    is_profiled: bool = False,
) -> None:
    """Serves.

    Args:
      chief_timeout_s: how long to wait for a missing chief.
      num_replicas: of each worker, as in `servers.devices`.
      is_profiled: whether the chief may ask for a profile of this process.

    Raises:
      ConfigError: the limit of open files is too low.
      ServerStartError: the port is taken.
      ChiefGoneError: the chief has been missing for too long.
    """
    stop.defer(_END_WITHIN_S)
    allow_open_files()
    me = topology.me
    run_over = RunOverSignal()
    _servers.append(servers.start(topology.spec(), me.job, me.index, num_replicas))
    with contextlib.closing(run_over), task_files.heartbeats(folder.path, me, lambda: "serving"):
        chief = ChiefProbe(topology, timeout_s=chief_timeout_s)
        profile = _profile(folder, topology) if is_profiled else None
        while not stop.requested.wait(_POLL_S) and not run_over:
            chief.check()
            if profile is not None:
                profile.look()


def _profile(folder: RunFolder, topology: Topology) -> Any:
    """What profiles this process; imported only where it is needed, since it imports more of TensorFlow."""
    from psrun.results.profiles import ProfileFollower

    return ProfileFollower(folder.path, topology.me)
