"""Limits the closures in flight: enough that no worker is idle, few enough that a stop takes effect soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from psrun.cluster.strategy import Distribution
from psrun.tf_internals.cluster import closure_ends, has_ended


class InFlightClosures:
    """The closures that were scheduled and not awaited yet.

    TensorFlow's queue holds 262,144. A smaller queue would deadlock if all workers were lost at once, because the
    closures of lost workers return to the queue.

    Args:
      per_worker: maximum number in flight per worker.
      in_order: whether to wait for closures in the order in which they were scheduled. Otherwise a slow worker delays
        only its own closures.

    Attributes:
      most: maximum number in flight in total.
    """

    def __init__(self, distribution: Distribution, per_worker: int = 4, *, in_order: bool = False) -> None:
        assert distribution.coordinator is not None
        self._coordinator = distribution.coordinator
        self.most = per_worker * distribution.num_workers
        self._waiting: deque[Any] = deque()
        self._ends = None if in_order else closure_ends(self._coordinator)

    def add(self, scheduled: Any) -> list[Any]:
        """Adds the return value of `schedule`; returns the closures that it had to wait for.

        Raises:
          tf.errors.OpError: a closure failed; the first error, not those of closures cancelled because of it.
        """
        self._waiting.append(scheduled)
        return [self._next() for _ in range(len(self._waiting) - self.most)]

    def rest(self) -> Iterator[Any]:
        """Yields the remaining closures as they finish; raises as `add`."""
        while self._waiting:
            yield self._next()

    def join(self) -> None:
        """Waits for all closures; raises as `add`."""
        self._waiting.clear()
        self._coordinator.join()

    def _next(self) -> Any:
        """Waits for the oldest closure, or for any; raises as `add`."""
        closure = self._waiting[0]
        if self._ends is not None:
            with self._ends:
                closure = self._ends.wait_for(lambda: next(filter(has_ended, self._waiting), None))
        self._waiting.remove(closure)
        try:
            closure.get()
        except tf.errors.OpError:
            # It failed, or was cancelled after another failure, which join raises; or the worker was lost while the
            # result was in transit: then the closure runs again, and is done when the join returns.
            self._coordinator.join()
            closure.get()
        return closure
