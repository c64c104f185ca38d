"""The live view of a sweep from outside."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from psrun.errors import ConfigError, ExitCode
from psrun.results.sweep_state import SweepReader, SweepState
from psrun.results.watch.run import EVERY_S
from psrun.results.watch.sweep_screen import SweepScreen, summary

_SHARE = 10  # at most one part in ten of the time is spent on reading


class SweepView:
    """Follows the jobs in a folder to the end of all, on `console`.

    Args:
      metric, mode: as of `SweepReader`.
    """

    def __init__(self, path: Path, console: Console, *, metric: str | None, mode: str | None) -> None:
        self._path, self._metric = path, metric
        self._reader = SweepReader(path, metric=metric, mode=mode)
        self._screen = SweepScreen(console)
        self._statuses: dict[str, str] | None = None  # that were shown

    def follow(self) -> ExitCode:
        """Shows the jobs until all have ended; 0 if all completed, else 1.

        Raises:
          ConfigError: all have ended, and none has the metric that was named.
          PsrunError: nothing is left in the folder.
        """
        self._screen.print(f"watching {self._path}")
        try:
            self._screen.start()
            while True:
                began_s = time.monotonic()
                state = self._reader.look()
                if state.is_over:
                    break
                self._show(state)
                time.sleep(max(EVERY_S, _SHARE * (time.monotonic() - began_s)))
        finally:
            self._screen.stop()
        self._require_metric(state)
        self._screen.result(state)
        return ExitCode.DONE if set(state.counts) == {"completed"} else ExitCode.FAILED

    def _show(self, state: SweepState) -> None:
        before = self._statuses
        self._statuses = {job.name: job.status for job in state.jobs}
        if before is None:
            self._screen.show(state, [job for job in state.jobs if not job.is_over])
            if not self._screen.is_live:
                self._screen.print(summary(state))
            return
        self._screen.show(state, [job for job in state.jobs if job.status != before.get(job.name)])

    def _require_metric(self, state: SweepState) -> None:
        names = dict.fromkeys(name for job in state.jobs for name in job.metrics)
        if self._metric and names and self._metric not in names:
            raise ConfigError(f"--metric: no job has '{self._metric}'; choose one of {', '.join(names)}")
