"""Closures on the workers, a few at a time: enough that none is idle, few enough that a stop comes soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from psrun.cluster.strategy import Distribution


class InFlightClosures:
    """The closures that were scheduled last and not waited for yet.

    TensorFlow's own queue takes 262,144. A smaller bound of it would stop all where every worker is lost at once:
    what is given back by a worker that went needs room in the queue, too.

    Args:
      per_worker: how many may be on their way for each worker.

    Attributes:
      most: how many may be on their way in all.
    """

    def __init__(self, distribution: Distribution, per_worker: int = 4) -> None:
        assert distribution.coordinator is not None
        self._coordinator = distribution.coordinator
        self.most = per_worker * distribution.num_workers
        self._waiting: deque[Any] = deque()

    def add(self, scheduled: Any) -> list[Any]:
        """Takes in what `schedule` returned; returns those that had to be waited for, as there were too many.

        Raises:
          tf.errors.OpError: one failed; the first error, not those of the others that were cancelled for it.
        """
        self._waiting.append(scheduled)
        return [self._oldest() for _ in range(len(self._waiting) - self.most)]

    def rest(self) -> Iterator[Any]:
        """Waits for each that is left; raises as `add`."""
        while self._waiting:
            yield self._oldest()

    def join(self) -> None:
        """Waits for all; raises as `add`."""
        self._waiting.clear()
        self._coordinator.join()

    def _oldest(self) -> Any:
        oldest = self._waiting.popleft()
        try:
            oldest.get()
        except tf.errors.OpError:
            # It failed, or was cancelled after another failure, which join raises; or the worker was lost while the
            # result was on its way: then the closure is run again, and has been once the join returns.
            self._coordinator.join()
            oldest.get()
        return oldest
