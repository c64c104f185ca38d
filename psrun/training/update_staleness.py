"""The staleness of the updates of a training: measured on parameter servers, or simulated in one process."""

from __future__ import annotations

import functools

from psrun.closures.simulated_delay import SimulatedDelay
from psrun.closures.staleness_meter import StalenessMeter
from psrun.program.compiled_model import Program
from psrun.results import staleness
from psrun.results.events import Reporter


class UpdateStaleness:
    """Reports the staleness of the updates of each epoch, if it is known."""

    def __init__(self, program: Program, reporter: Reporter) -> None:
        self._reporter, self._num_workers = reporter, program.distribution.num_workers
        mode = program.config.consistency
        self._delay: SimulatedDelay | None = mode.load()(program, mode) if mode.one_process else None
        self._on_workers = program.distribution.coordinator is not None

    @functools.cached_property
    def meter(self) -> StalenessMeter:
        """Measures the updates on workers."""
        return StalenessMeter(self._num_workers)

    def begin(self) -> None:
        """Call before the first step of an epoch, and after a checkpoint within one."""
        if self._delay is not None:
            self._delay.begin()

    def epoch_joined(self, step: int, epoch: int) -> None:
        """Call when the steps of an epoch are done, `step` in total."""
        source = self.meter if self._on_workers else self._delay
        measured = staleness.statistics_by_worker(source.take()) if source is not None else {}
        if measured:
            self._reporter.emit("staleness", step=step, epoch=epoch, **measured)
