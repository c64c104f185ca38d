"""The staleness of the updates of a training: measured on parameter servers, or simulated in one process."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from psrun.closures.simulated_delay import SimulatedDelay
from psrun.closures.staleness_meter import StalenessMeter
from psrun.program.compiled_model import Program
from psrun.results.staleness import Histogram
from psrun.training.hooks import HookContext


class UpdateStaleness:
    """The staleness of the updates, where it is known."""

    def __init__(self, program: Program) -> None:
        self._num_workers = program.distribution.num_workers
        mode = program.config.consistency
        self._delay: SimulatedDelay | None = mode.load()(program, mode) if mode.one_process else None
        self._on_workers = program.distribution.coordinator is not None

    @functools.cached_property
    def meter(self) -> StalenessMeter:
        """Measures the updates on workers."""
        return StalenessMeter(self._num_workers)

    def begin(self, context: HookContext) -> None:
        """Lets simulated delays begin: before the first step of an epoch, and after a checkpoint within one."""
        if self._delay is not None:
            self._delay.begin()

    def take(self) -> Mapping[str, Histogram]:
        """The staleness of the updates since the last call, by task; call when no step runs."""
        source = self.meter if self._on_workers else self._delay
        return {} if source is None else source.take()
