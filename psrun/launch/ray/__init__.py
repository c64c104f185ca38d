"""`cluster=ray`: the tasks of a run are actors on the nodes of a Ray cluster, one that is there or one of its own.

The process that was started is the supervisor, as with cluster=local, and a driver of Ray: Ray places the tasks and
says what became of nodes and processes; when to start what again is decided here, as Ray's own restarts of actors know
nothing of exit codes and heartbeats, nor that parameter servers and chief start together, and would start a task on
another node, where nobody looks for it.
"""

from __future__ import annotations

import importlib.util

from psrun.errors import ConfigError, Problem


def check_installed() -> None:
    """Raises ConfigError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError([Problem("cluster", "'ray' requires Ray: pip install 'psrun[ray]', or choose cluster=local")])
