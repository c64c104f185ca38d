"""What `psrun submit` hands to a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psrun.config.run_config import RunConfig


@dataclass(frozen=True)
class Submission:
    """What an engine is given.

    Attributes:
      run: what is to be run, checked, with the engine's cluster.
      arguments: in Hydra's grammar, `cluster=ENGINE` among them: what each task is started with.
      folder: where the command was given; relative paths in arguments are seen from there.
      dry_run: whether to show what would be handed over and do nothing.
      follow: whether to stay until the run has ended.
    """

    run: RunConfig
    arguments: list[str]
    folder: Path
    dry_run: bool
    follow: bool
