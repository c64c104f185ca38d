"""One process of a run whose configuration is already in the run folder: `python -m psrun.roles FOLDER`.

The tasks of a supervisor and the jobs of a sweep start here. It does not import Hydra, which would take half a second.
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
    sys.path.append(os.getcwd())  # so that users can name their own models and data
    raw: Any = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    return run_process.execute(raw, folder, _overrides(folder), started_s=started_s)


def _overrides(folder: Path) -> list[str]:
    """The overrides of the run as written, unresolved: their interpolations require Hydra."""
    file = folder / ".hydra" / "overrides.yaml"
    if not file.exists():
        return []
    overrides: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return [each for each in map(str, overrides) if not each.startswith("resume=")]


if __name__ == "__main__":
    run_process.to_the_end(_run)
