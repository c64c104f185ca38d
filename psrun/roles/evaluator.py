"""The sidecar evaluator: never connects to the training cluster; ends when the run does."""

from __future__ import annotations

import os
import time

from psrun.cluster import files
from psrun.cluster.topology import Task
from psrun.errors import ChiefGoneError
from psrun.reporting.run_folder import OVER, RunFolder
from psrun.stop import Stop

_POLL_S = 0.5


def run(folder: RunFolder, stop: Stop, *, index: int, run_timeout_s: float) -> None:
    """Waits for the run in the folder to be over.

    Raises:
      ChiefGoneError: there was no run in the folder for `run_timeout_s` seconds.
    """
    stop.defer(_POLL_S * 10)
    me, began_s = Task("evaluator", index), time.monotonic()
    heart = files.Heart(folder.path, me, lambda: files.Heartbeat(os.getpid(), time.time(), "waiting"))
    heart.start()
    try:
        while not stop.requested.wait(_POLL_S):
            status = folder.stored().get("status")
            if status in OVER:
                return
            if status is None and time.monotonic() - began_s > run_timeout_s:
                raise ChiefGoneError(f"no run in {folder.path} for {run_timeout_s:.0f} s; {me} ends", task=str(me))
    finally:
        heart.stop()
