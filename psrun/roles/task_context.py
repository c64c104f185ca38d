"""What the task that leads a run is given, whatever it does."""

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
    """Where the task works, who is told of it, and its cluster.

    Attributes:
      folder: of the run; or, to evaluate or predict on a cluster of several processes, one of its own within that.
      console: for a person.
      started_s: when the run started, as of `time.time`.
      topology: of a cluster of several processes; None where this is the only one.
      give_up: ends this process with an error, whatever its threads are doing; for clusters that nobody supervises.
      connect: in place of `strategy.connect`; tests hand in one that uses servers already there.
    """

    folder: RunFolder
    console: Sink
    started_s: float
    topology: Topology | None = None
    give_up: Callable[[PsrunError], None] | None = None
    connect: Callable[..., Any] | None = None  # this module does not import TensorFlow
