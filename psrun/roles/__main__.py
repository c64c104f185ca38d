"""Runs one process of a run: `python -m psrun.roles FOLDER`.

The tasks of a supervisor and the jobs of a sweep start here, or are forked by `psrun.roles.fork_server`. It does not
import Hydra, which would take half a second.
"""

from __future__ import annotations

import sys
from pathlib import Path

from psrun.roles import run_process

if __name__ == "__main__":
    run_process.run_prepared(Path(sys.argv[1]))
