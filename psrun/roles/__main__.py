"""One process of a run that is composed already, its configuration in the run folder: `python -m psrun.roles FOLDER`.

A supervisor's tasks and the jobs of a sweep start here. It knows nothing of Hydra, which would take half a second.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from psrun import process
from psrun.errors import ExitCode
from psrun.results.run_folder import CONFIG
from psrun.roles import run_process


def _run(started_s: float) -> ExitCode:
    process.end_with_sweep()
    folder = Path(sys.argv[1])
    sys.path.append(os.getcwd())  # where a person's own models and data are named from
    raw: Any = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    return run_process.execute(raw, folder, _overrides(folder), started_s=started_s)


def _overrides(folder: Path) -> list[str]:
    """What the run was started with, as it was written: its interpolations are Hydra's, which is not there."""
    file = folder / ".hydra" / "overrides.yaml"
    if not file.exists():
        return []
    written: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return [each for each in map(str, written) if not each.startswith("resume=")]


if __name__ == "__main__":
    run_process.to_the_end(_run)
