"""A worker of a synchronous cluster: trains in step with the chief, and discards its results."""

from __future__ import annotations

import shutil
from dataclasses import replace

from psrun.config.run_config import RunConfig
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.run_folder import RunFolder
from psrun.roles import coordinator
from psrun.roles.task_context import TaskContext


def run(run_config: RunConfig, context: TaskContext, stop: Stop) -> None:
    """Trains. All tasks write checkpoints together, since reading a variable can require all of them.

    Raises:
      PsrunError: the run failed.
    """
    assert context.topology is not None
    shared = task_files.shared(context.folder.path)
    shared.mkdir(exist_ok=True)
    scratch = shared / f"{context.topology.me}-own"
    shutil.rmtree(scratch, ignore_errors=True)  # of the process before this one
    scratch.mkdir()
    own = RunFolder(scratch, root=context.folder)
    coordinator.run(run_config, replace(context, folder=own), stop)
