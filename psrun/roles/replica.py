"""A worker of a synchronous cluster: does what the chief does, at the same time, and keeps the result for itself."""

from __future__ import annotations

import shutil

from psrun.config.run_config import RunConfig
from psrun.config.topology import Topology
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.events import Sink
from psrun.results.run_folder import RunFolder
from psrun.roles import coordinator


def run(
    run_config: RunConfig, folder: RunFolder, console: Sink, stop: Stop, topology: Topology, *, started_s: float
) -> None:
    """Trains. Checkpoints too are written by all tasks at once, as reading a variable can take all of them.

    Raises:
      PsrunError: the run failed.
    """
    shared = task_files.shared(folder.path)
    shared.mkdir(exist_ok=True)
    scratch = shared / f"{topology.me}-own"
    shutil.rmtree(scratch, ignore_errors=True)  # of the process before this one
    scratch.mkdir()
    own = RunFolder(scratch, whole=folder)
    coordinator.run(run_config, own, console, stop, started_s=started_s, topology=topology)
