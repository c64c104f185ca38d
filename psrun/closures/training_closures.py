"""The closures of training steps, which the consistency mode schedules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Stage
from psrun.cluster.strategy import Distribution
from psrun.config import choices
from psrun.program.compiled_model import Program
from psrun.tf_internals.coordinator import Again, ClosureQueue, Rule, has_ended


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
        self._max_delay = max_delay
        self._num_added = 0
        self._waiting: deque[tuple[int, Any]] = deque()  # with their numbers
        self._ends = None if in_order else ClosureQueue.of(self._coordinator).ended

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


class WorkerClocks:
    """The rule by which workers take closures, for `tf_internals.closure_queue`.

    The clock of a worker counts the closures with a mark that it has done. A worker whose clock is more than
    `staleness` ahead of the slowest live worker's takes no closure with a mark (Ho et al.: More Effective Distributed
    ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013). The clock of a lost worker does not count; when
    the worker is back, its clock is that of the slowest live worker.
    """

    def __init__(self, num_workers: int, staleness: int) -> None:
        self._clocks = dict.fromkeys(range(num_workers), 0)
        self._staleness = staleness
        self._live = set(self._clocks)

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        waits = self._clocks[worker] - min(self._clocks[each] for each in self._live) > self._staleness
        return next((place for place, mark in enumerate(queued) if mark is None or not waits), None)

    def finished(self, worker: int, mark: Any) -> None:
        self._clocks[worker] += 1

    def left(self, worker: int) -> None:
        self._live.discard(worker)

    def returned(self, worker: int) -> None:
        self._clocks[worker] = min((self._clocks[each] for each in self._live), default=self._clocks[worker])
        self._live.add(worker)

    def is_over(self, mark: Any) -> bool:
        return False


class TrainingClosures(InFlightClosures):
    """For the closures of all kinds of training steps: one object, because a round may be of any kind.

    Args:
      rule: by which workers take closures; None for TensorFlow's, or that of the mode's `staleness`.

    Attributes:
      num_cut: number of steps that some parameter servers applied later than others, since their worker was lost.
      num_kinds: number of kinds of steps that are scheduled.
    """

    def __init__(
        self, distribution: Distribution, consistency: choices.ConsistencyChoice, rule: Rule | None = None
    ) -> None:
        super().__init__(distribution, max_delay=consistency.max_delay)
        self._num_workers = distribution.num_workers
        self._queue = ClosureQueue.of(self._coordinator)
        self.num_cut = 0
        self.num_kinds = 0
        if consistency.staleness is not None:
            rule = WorkerClocks(distribution.num_workers, consistency.staleness)
        self._queue.follow(rule)

    def schedule(self, function: Any, arguments: Sequence[Any], again: Callable[[], Again | None] | None = None) -> Any:
        """Schedules a closure, and waits as `add`; returns its remote value.

        Args:
          again: as in `ClosureQueue.marking`.

        Raises:
          tf.errors.OpError: an earlier closure failed.
        """
        with self._queue.marking(True, again):
            scheduled = self._coordinator.schedule(function, args=tuple(arguments))
        self.add(scheduled)
        return scheduled

    def stages(self, program: Program) -> list[Stage]:
        """The stages that a consistency mode adds to every closure."""
        return []

    def join(self) -> None:
        super().join()
        self._queue.joined()

    def facts(self) -> dict[str, Any]:
        """`waited_s`: seconds that each worker has waited for its next closure; at a join no worker waits. `cut_steps`:
        the number of steps of lost workers that some servers had applied, and others later.
        """
        waited_s = self._queue.waited_s()
        return {
            "waited_s": {f"worker-{index}": round(waited_s.get(index, 0.0), 3) for index in range(self._num_workers)},
            "cut_steps": self.num_cut,
        }
