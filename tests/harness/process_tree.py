"""What a process has started."""

from __future__ import annotations

import contextlib
import subprocess
import time

import psutil

LOOK_EVERY_S = 0.5


class ProcessTree:
    """All processes that `process` has been seen to start, also those that have lost their parent.

    Attributes:
      seen: these, also ended ones.
    """

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process
        self.seen: set[psutil.Process] = set()
        self._looked_s = 0.0

    def look(self, *, now: bool = False) -> None:
        """Looks for new ones, if `now` or if it has not just been done: each time it reads all processes there are."""
        if now or time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seen.update(psutil.Process(self._process.pid).children(recursive=True))

    def running(self) -> list[psutil.Process]:
        """Those that still run."""
        return [each for each in self.seen if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def kill(self, *, after_s: float) -> None:
        """Kills those that still run after this time."""
        psutil.wait_procs([each for each in self.seen if each.is_running()], timeout=after_s)
        for each in self.running():
            each.kill()
