"""The run that `psrun submit` passes to an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psrun.config.run_config import RunConfig


@dataclass(frozen=True)
class Submission:
    """A run to submit.

    Attributes:
      run: the checked configuration, with the engine's cluster.
      arguments: of each task, in Hydra's grammar, with `cluster=ENGINE`.
      folder: working directory of the command, to which paths in arguments are relative.
      dry_run: whether to print what would be submitted and do nothing.
      follow: whether to follow the run until it has ended.
    """

    run: RunConfig
    arguments: list[str]
    folder: Path
    dry_run: bool
    follow: bool
