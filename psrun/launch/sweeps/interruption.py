"""Ends a sweep on Ctrl-C or SIGTERM, with any launcher."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from psrun.errors import Interrupted
from psrun.results.sweep_record import END, KILL, Sweep

_WITHIN_S = 40.0  # a run saves and exits within 25 s, and the remaining tasks of its cluster within 10 s
_KILLED_WITHIN_S = 3.0


class Ended(BaseException):
    """A signal ended the sweep and its jobs. Not an Exception: launchers and sweepers attribute exceptions to a job."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Interruption:
    """The first signal stops running jobs after a save, then raises Ended; the second ends all immediately."""

    def __init__(self, sweep: Sweep, show: Callable[[str], None]) -> None:
        self._sweep, self._show = sweep, show
        self.signum: int | None = None

    def install(self) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._handle)

    def raise_if_ended(self) -> None:
        """Raises Ended again, for launchers that swallow it."""
        if self.signum is not None:
            raise Ended(self.signum)

    def _handle(self, signum: int, frame: Any) -> None:
        if self.signum is not None:
            self._sweep.tell_to_end(KILL)
            self._wait(_KILLED_WITHIN_S)
            os._exit(Interrupted(signum).exit_code)
        self.signum = signum
        self._sweep.tell_to_end(END)
        self._show(f"{signal.Signals(signum).name}: running jobs save and exit; repeat to exit immediately")
        self._wait(_WITHIN_S)
        raise Ended(signum)

    def _wait(self, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while self._sweep.is_any_under_way() and time.monotonic() < deadline_s:
            time.sleep(0.1)
