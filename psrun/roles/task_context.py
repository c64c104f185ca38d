"""The context of a chief's task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psrun.config.topology import Topology
from psrun.errors import PsrunError
from psrun.results.events import Sink
from psrun.results.run_folder import RunFolder


@dataclass(frozen=True)
class TaskContext:
    """Where the task works and reports, and its cluster.

    Attributes:
      folder: of the run; or a folder within it, to evaluate or predict on a cluster of several processes.
      console: output for users.
      started_s: when the run started, as of `time.time`.
      topology: of a cluster of several processes; None for a single process.
      give_up: ends this process with an error, whatever its threads are doing; for clusters without a supervisor.
      connect: replaces `strategy.connect`, in tests with running servers.
    """

    folder: RunFolder
    console: Sink
    started_s: float
    topology: Topology | None = None
    give_up: Callable[[PsrunError], None] | None = None
    connect: Callable[..., Any] | None = None  # this module does not import TensorFlow
