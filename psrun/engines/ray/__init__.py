"""`cluster=ray`: the tasks of a run are actors on the nodes of an existing or a private Ray cluster.

The started process is the supervisor, as with cluster=local, and the driver in Ray's terms. Ray places the tasks and
reports lost nodes and processes; the supervisor decides about restarts. Ray's restarts of actors consider neither exit
codes nor heartbeats, restart parameter servers without their chief, and may move a task to a node with another address.
"""

from __future__ import annotations

import importlib
import importlib.util

from psrun.errors import ConfigError, Problem
from psrun.launch.backend import Backend, Launch


def open_backend(launch: Launch) -> Backend:
    """The engine of `cluster=ray`. Raises ConfigError if Ray is not installed."""
    check_installed()
    return importlib.import_module("psrun.engines.ray.backend").RayBackend(launch)


def check_installed() -> None:
    """Raises ConfigError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError([Problem("cluster", "'ray' requires Ray: pip install 'psrun[ray]', or choose cluster=local")])
