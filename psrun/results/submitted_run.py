"""submitted.json in a run folder: the engine's job that will run it, until run.json has more to say."""

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


def record(folder: Path, *, cluster: str, job: Mapping[str, str], status: str = PENDING) -> None:
    """Writes it. Raises OSError.

    Args:
      cluster: the kind of the cluster.
      job: the engine's job, as run.json has it in `process`.
    """
    values = {**job, "cluster": cluster, "status": status, "submitted_s": round(time.time(), 3)}
    files.write_atomic(folder / FILE, json.dumps(values) + "\n")


def result(folder: Path) -> Mapping[str, Any]:
    """What is known of a submitted run that has not begun, as run.json would have it; empty if nothing is."""
    values, problem = reading.loaded(folder / FILE)
    if problem or values.get("status") not in (PENDING, NOT_RUN):
        return {}
    job = {**values}
    status = job.pop("status")
    submitted_s = job.pop("submitted_s", None)
    cluster = job.pop("cluster", None)
    return {"status": status, "started_s": submitted_s, "process": job, "cluster": {"topology": cluster}}
