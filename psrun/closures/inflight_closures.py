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
      max_delay: `add` also waits until all closures are done but the last `max_delay`; None for no such bound.

    Attributes:
      most: maximum number in flight in total.
    """

    def __init__(
        self,
        distribution: Distribution,
        per_worker: int = 4,
        *,
        in_order: bool = False,
        max_delay: int | None = None,
    ) -> None:
        assert distribution.coordinator is not None
        self._coordinator = distribution.coordinator
        self.most = per_worker * distribution.num_workers
        self._max_delay, self._num_added = max_delay, 0
        self._waiting: deque[tuple[int, Any]] = deque()  # with their numbers
        self._ends = None if in_order else closure_ends(self._coordinator)

    def add(self, scheduled: Any) -> list[Any]:
        """Adds the return value of `schedule`; returns the closures that it had to wait for.

        Raises:
          tf.errors.OpError: a closure failed; the first error, not those of closures cancelled because of it.
        """
        self._waiting.append((self._num_added, scheduled))
        self._num_added += 1
        ended = [self._next() for _ in range(len(self._waiting) - self.most)]
        if self._max_delay is not None:
            while self._waiting and self._waiting[0][0] < self._num_added - self._max_delay:
                ended.append(self._ended(self._waiting[0]))
        return ended

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
        first = self._waiting[0]
        if self._ends is not None:
            with self._ends:
                while (ended := next((each for each in self._waiting if has_ended(each[1])), None)) is None:
                    self._ends.wait()
            first = ended
        return self._ended(first)

    def _ended(self, numbered: tuple[int, Any]) -> Any:
        """Waits for a closure; raises as `add`."""
        self._waiting.remove(numbered)
        _, closure = numbered
        try:
            closure.get()
        except tf.errors.OpError:
            # It failed, or was cancelled after another failure, which join raises; or the worker was lost while the
            # result was in transit: then the closure runs again, and is done when the join returns.
            self._coordinator.join()
            closure.get()
        return closure
