"""submitted.json in a run folder: the Slurm job that will run it, until run.json has more to say."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psrun import files
from psrun.results import reading

FILE = "submitted.json"
PENDING, NOT_RUN = "pending", "not run"  # the status of a run that has not begun, and of one that never will


def record(folder: Path, *, slurm_job: str, status: str = PENDING) -> None:
    """Writes it. Raises OSError."""
    values = {"slurm_job": slurm_job, "status": status, "submitted_s": round(time.time(), 3)}
    files.write_atomic(folder / FILE, json.dumps(values) + "\n")


def result(folder: Path) -> Mapping[str, Any]:
    """What is known of a submitted run that has not begun, as run.json would have it; empty if nothing is."""
    values, problem = reading.loaded(folder / FILE)
    if problem or values.get("status") not in (PENDING, NOT_RUN):
        return {}
    return {
        "status": values["status"],
        "started_s": values.get("submitted_s"),
        "process": {"slurm_job": values.get("slurm_job")},
        "cluster": {"topology": "slurm"},
    }
