"""A worker of a synchronous cluster: does what the chief does, at the same time, and keeps the result for itself."""

from __future__ import annotations

import shutil

from psrun.cluster import files
from psrun.cluster.topology import Topology
from psrun.config import RunConfig
from psrun.reporting.events import Sink
from psrun.reporting.run_folder import RunFolder
from psrun.roles import coordinator
from psrun.stop import Stop


def run(
    run_config: RunConfig, folder: RunFolder, console: Sink, stop: Stop, topology: Topology, *, started_s: float
) -> None:
    """Trains. Checkpoints too are written by all tasks at once, as reading a variable can take all of them.

    Raises:
      PsrunError: the run failed.
    """
    shared = files.shared(folder.path)
    shared.mkdir(exist_ok=True)
    scratch = shared / f"{topology.me}-own"
    shutil.rmtree(scratch, ignore_errors=True)  # of the process before this one
    scratch.mkdir()
    own = RunFolder(scratch, whole=folder)
    coordinator.run(run_config, own, console, stop, started_s=started_s, topology=topology)
