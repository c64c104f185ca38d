"""The duration of training epochs, without pauses such as checkpoints and evaluations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from psrun.training.progress import ProgressMonitor


class Clock:
    """Times of epochs: from `epoch_begins` to `steps_joined`, without pauses.

    Args:
      first_step: number of steps applied before this process began.

    Attributes:
      steps, seconds: sums over the finished epochs, from the first applied step on.
    """

    def __init__(self, first_step: int) -> None:
        self.steps, self.seconds = 0, 0.0
        self._first_step = self._step = first_step
        self._began_s = self._joined_s = 0.0
        self._pauses_s: list[tuple[float, float]] = []  # of the running epoch: start and end

    def rate(self) -> float | None:
        """Steps per second over all epochs."""
        return self.steps / self.seconds if self.seconds else None

    def epoch_begins(self) -> None:
        self._pauses_s, self._began_s = [], time.monotonic()

    def steps_joined(self) -> None:
        self._joined_s = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time spent in this context."""
        began_s = time.monotonic()
        yield
        self._pauses_s.append((began_s, time.monotonic()))

    def epoch_ends(self, step: int, monitor: ProgressMonitor) -> tuple[float, float]:
        """Seconds of the whole epoch, and its steps per second, when `step` steps have been applied in total."""
        steps, began_s = step - self._step, self._began_s
        if self._step == self._first_step and monitor.first_step_count < step and monitor.first_step_s is not None:
            # Tracing and connecting count as the time to the first step, not as slow steps.
            steps, began_s = step - monitor.first_step_count, monitor.first_step_s
        seconds = self._since(began_s)
        self.steps += steps
        self.seconds += seconds
        self._step = step
        return self._since(self._began_s), steps / max(seconds, 1e-9)

    def _since(self, began_s: float) -> float:
        paused_s = sum(max(0.0, ended - max(began_s, paused)) for paused, ended in self._pauses_s)
        return self._joined_s - began_s - paused_s
