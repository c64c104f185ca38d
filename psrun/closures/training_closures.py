"""The closures of training steps, which the consistency mode schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from psrun.closures.inflight_closures import InFlightClosures
from psrun.closures.stage import Stage
from psrun.closures.worker_clocks import WorkerClocks
from psrun.cluster.strategy import Distribution
from psrun.config import choices
from psrun.program.compiled_model import Program
from psrun.tf_internals.closure_queue import Again, MarkedClosures


class TrainingClosures(InFlightClosures):
    """For the closures of all kinds of training steps: one object, because a round may be of any kind.

    Attributes:
      num_cut: number of steps that some parameter servers applied later than others, since their worker was lost.
      num_kinds: number of kinds of steps that are scheduled.
    """

    def __init__(self, distribution: Distribution, consistency: choices.ConsistencyChoice) -> None:
        super().__init__(distribution, max_delay=consistency.max_delay)
        self._num_workers, self._queue = distribution.num_workers, MarkedClosures.of(self._coordinator)
        self.num_cut = 0
        self.num_kinds = 0
        staleness = consistency.staleness
        self._queue.follow(None if staleness is None else WorkerClocks(distribution.num_workers, staleness))

    def schedule(self, function: Any, arguments: Sequence[Any], again: Callable[[], Again | None] | None = None) -> Any:
        """Schedules a closure, and waits as `add`; returns its remote value.

        Args:
          again: as in `MarkedClosures.marking`.

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
        the number of steps of lost workers that some servers had applied, and others later."""
        waited_s = self._queue.waited_s()
        return {
            "waited_s": {f"worker-{index}": round(waited_s.get(index, 0.0), 3) for index in range(self._num_workers)},
            "cut_steps": self.num_cut,
        }
