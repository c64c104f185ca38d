"""Watches the jobs of a sweep of this process: keeps its record and shows it."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.text import Text

from psrun.errors import SweepError
from psrun.results.console import warner
from psrun.results.run_folder import OVER
from psrun.results.sweep_record import Sweep
from psrun.results.sweep_state import JobState, SweepReader, SweepState
from psrun.results.watch.sweep_screen import SweepScreen

_EVERY_S = 0.5


class Monitor:
    """Reads the folders of the jobs, updates `sweep` and shows the state on `console`."""

    def __init__(self, sweep: Sweep, console: Console) -> None:
        self._sweep, self._console = sweep, console
        self._screen = SweepScreen(console)
        self._reader = SweepReader(sweep.path, metric=sweep.metric, mode=sweep.mode or "min", supervised=True)
        self._lock = threading.Lock()
        self._ended, self._warned = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="psrun-sweep-monitor", daemon=True)

    def start(self) -> None:
        self._screen.print(Text.assemble(("sweep", "bold"), f"  folder {self._sweep.path}"))
        self._screen.start()
        self._thread.start()

    def stop(self) -> None:
        """Stops after a last look."""
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join()
        self.look()
        self._screen.stop()

    def print(self, text: str) -> None:
        self._screen.print(text)

    def look(self) -> None:
        """Updates the record and shows what has changed."""
        with self._lock:
            self._screen.show(*self._updated())

    def update(self) -> None:
        """Updates the record and shows nothing."""
        with self._lock:
            self._updated()

    def result(self) -> None:
        """Prints the table of all jobs."""
        if self._sweep.jobs:
            self._screen.result(self._reader.look(self._sweep.record()))

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.look()

    def _updated(self) -> tuple[SweepState, list[JobState]]:
        """The current state, and the jobs whose status has changed."""
        state = self._reader.look(self._sweep.record())
        changed = [job for job in state.jobs if self._update(job)]
        if changed:
            self._write()
        return state, changed

    def _update(self, job: JobState) -> bool:
        """Records the state of a job; whether its status has changed."""
        if job.number is None or job.status == self._sweep.jobs[job.number].status:
            return False
        over = {"wall_s": job.wall_s, "exit_code": job.exit_code, "error": job.error or None}
        metric = self._sweep.measured(job.metrics) if job.status == "completed" else None
        self._sweep.now(job.number, status=job.status, metric=metric, **(over if job.status in OVER else {}))
        return True

    def _write(self) -> None:
        try:
            self._sweep.write()
        except SweepError as error:  # the folders of the jobs hold the same state
            if not self._warned:
                self._warned = True
                warner(self._console)(str(error))
