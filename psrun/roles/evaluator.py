"""An evaluator task that does not evaluate: never connects to the cluster, and exits when the run is over."""

from __future__ import annotations

import os
import time

from psrun.config.topology import CHIEF, Task
from psrun.errors import ChiefGoneError, ExitCode
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.run_folder import RunFolder, is_over

_POLL_S = 0.5


def run(folder: RunFolder, stop: Stop, *, index: int, run_timeout_s: float) -> None:
    """Waits until the run in the folder is over, which it is not while its chief is to be restarted.

    Raises:
      ChiefGoneError: there was no run in the folder, or no heartbeat of its chief, for `run_timeout_s`.
    """
    stop.defer(_POLL_S * 10)
    me = Task("evaluator", index)
    beat = None
    heard_s = time.monotonic()
    heartbeat = task_files.HeartbeatWriter(
        folder.path, me, lambda: task_files.Heartbeat(os.getpid(), time.time(), "waiting")
    )
    heartbeat.start()
    try:
        while not stop.requested.wait(_POLL_S):
            result = folder.stored()
            before = beat
            if is_over(result) or result.get("exit_code") == ExitCode.INTERRUPTED:
                return
            beat = task_files.read(folder.path, CHIEF)
            if beat is not None and beat != before:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > run_timeout_s:
                what = "no chief of the run in" if result else "no run in"
                raise ChiefGoneError(f"{what} {folder.path} for {run_timeout_s:.0f} s; {me} exits", task=str(me))
    finally:
        heartbeat.stop()
