"""The number of steps of a closure, chosen by the time that a step takes."""

from __future__ import annotations

import time

from psrun.closures.inflight_closures import InFlightClosures
from psrun.config import choices

# How long a closure is to take where the number of its steps is chosen. Its dispatch costs a millisecond or two of the
# coordinator's one thread (docs/explanation/scale.md), which is to be busy half of the time at most, however many
# workers there are.
_CLOSURE_S = 0.1
_CLOSURE_PER_WORKER_S = 0.0033
_MOST_CHOSEN = 200
_MEASURED_PER_WORKER = 4


class ClosureTimer:
    """Measures the closures of workers. Pauses, in which nothing is scheduled, do not count."""

    def __init__(self, in_flight: InFlightClosures, num_workers: int) -> None:
        self._in_flight, self._num_workers = in_flight, num_workers
        self._num_measured, self._since_s = 0, 0.0
        self._paused_s: float | None = None

    def pause(self) -> None:
        """Call when all is joined."""
        self._paused_s = time.monotonic()

    def resume(self) -> None:
        """Call before a closure is scheduled."""
        if self._paused_s is not None:
            self._since_s += time.monotonic() - self._paused_s
            self._paused_s = None

    def closure_s(self) -> float | None:
        """Seconds of a closure on a worker, once known; each worker's first of the present length does not count.

        Call after each closure of that length.
        """
        self._num_measured += 1
        if self._num_measured == self._num_workers:
            self._in_flight.join()
            self._since_s = time.monotonic()
        if self._num_measured < (1 + _MEASURED_PER_WORKER) * self._num_workers:
            return None
        self._in_flight.join()
        self._num_measured = 0
        return (time.monotonic() - self._since_s) / _MEASURED_PER_WORKER


def after(num_steps: int, step_s: float, steps_per_epoch: int, num_workers: int, *, least: int) -> int:
    """The next number of steps where closures of `num_steps` took `step_s` seconds a step.

    Args:
      least: as in `Stream`.
    """
    ten = min(choices.MAX_UNROLLED_STEPS, steps_per_epoch)
    length = max(chosen(step_s, steps_per_epoch, num_workers), min(least, steps_per_epoch))
    # A closure of one step takes much more than the step: whether ten are enough is measured with ten.
    return ten if (num_steps == 1 and step_s < _CLOSURE_S) or ten / 2 <= length <= ten else length


def chosen(step_s: float, steps_per_epoch: int, num_workers: int) -> int:
    """The number of steps of a closure where one takes `step_s` seconds on a worker.

    As many as fill 0.1 s, or longer with more than thirty workers; above ten a multiple of ten; slightly fewer if they
    then divide an epoch evenly.
    """
    closure_s = max(_CLOSURE_S, _CLOSURE_PER_WORKER_S * num_workers)
    most = min(max(1, round(closure_s / max(step_s, 1e-6))), _MOST_CHOSEN, steps_per_epoch)
    possible = [n for n in range(1, most + 1) if n <= choices.MAX_UNROLLED_STEPS or n % choices.MAX_UNROLLED_STEPS == 0]
    even = [n for n in possible if steps_per_epoch % n == 0 and 2 * n > possible[-1]]
    return max(even or possible)
