"""The closures of training steps, which the consistency mode schedules, and what their schedulers have in common."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from psrun.closures import stages
from psrun.closures.input_streams import DealtInput, Stream
from psrun.closures.measurements import StalenessMeter, StepProfiler
from psrun.closures.rules import WorkerClocks
from psrun.closures.stage import Stage, Step
from psrun.closures.stages import Closure
from psrun.cluster.strategy import Distribution
from psrun.config import choices
from psrun.program.compiled_model import Program
from psrun.tf_internals.coordinator import Again, ClosureQueue, Rule, has_ended
from psrun.tf_internals.strategies import iterator_spec


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
          tf.errors.OpError: a closure failed; the first error, not what it cancelled.
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
        if self._ends is None:
            return self._ended(self._waiting[0])
        with self._ends:
            first = self._first_ended()
            while first is None:
                self._ends.wait()
                first = self._first_ended()
        return self._ended(first)

    def _first_ended(self) -> tuple[int, Any] | None:
        for numbered in self._waiting:
            if has_ended(numbered[1]):
                return numbered
        return None

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


@dataclass(frozen=True)
class Packed:
    """How steps are packed.

    Attributes:
      num_steps: number of steps of a closure.
      step_s: the measured seconds per step that determined `num_steps`; None if it is configured.
      rows_late: the number of a worker's own updates that may be missing in the table rows it reads.
      weights_late: the same for dense variables.
    """

    num_steps: int
    step_s: float | None = None
    rows_late: int = 0
    weights_late: int = 0


@dataclass(frozen=True, eq=False)
class StepKind:
    """One kind of step of a training on the workers of a coordinator, and what its scheduler asks and tells the run.

    Attributes:
      feed: the input of the steps.
      profiler: measures where the time of a step goes.
      meter: measures the staleness of updates.
      step: trains on one batch, instead of the network's `train_step`; its return value is dropped.
      planned: total number of steps to schedule.
      steps_left: the number of steps until the end of the epoch; None where epochs have no end.
      num_scheduled: the number of steps of the run that were scheduled so far, over all kinds.
      began_s: virtual seconds of the training before this process.
      warn: called with what deserves attention in a step.
      on_packed: called when the length of closures is decided, and when it changes.
    """

    program: Program
    feed: Stream
    profiler: StepProfiler
    meter: StalenessMeter
    step: Step | None
    planned: int
    steps_left: Callable[[], int | None]
    num_scheduled: Callable[[], int]
    began_s: float
    warn: Callable[[str], None]
    on_packed: Callable[[Packed], None]

    @property
    def iterator(self) -> Any:
        """The iterators of all workers, or of this process, which all kinds share."""
        return self.feed.iterator(self.program.distribution.coordinator)

    @property
    def is_plain(self) -> bool:
        """Whether it is the step of Keras, which increments the optimizer's counter once."""
        return self.step is None and self.program.own_step is None

    @property
    def logs(self) -> dict[str, float]:
        """Zeros by name of metric."""
        return dict.fromkeys((metric.name for metric in self.program.network.metrics), 0.0)

    def closure(self, parts: Sequence[Stage]) -> Closure:
        """The closure of the step with these stages and the stages of every closure.

        Raises:
          ConfigError: weights or rows cannot be exchanged as the trainer's options ask.
        """
        iterator = self.iterator  # first: workers begin to read while the closure is made and traced
        common = stages.on_workers(self.program, self.profiler, self.meter, self.warn)
        return Closure(self.program, self.feed, [*parts, *common], self.step, iterator_spec(iterator))


class Steps(Protocol):
    """Schedules the steps of one kind.

    Attributes:
      num_steps: number of steps of a closure; may change after the first ones.
      logs: the remote value of what the network's `train_step` returned in the last scheduled step, without metrics;
        zeros by name of metric if it returned nothing else. Metrics are read after a join.
    """

    num_steps: int
    logs: Any

    def schedule(self, most: int) -> int:
        """Schedules the steps of a closure, at most `most`. Returns their number.

        Raises:
          tf.errors.OpError: an earlier step failed.
        """
        ...

    def join(self) -> None:
        """Waits for all scheduled steps; raises as `schedule`."""


class TrainingClosures(InFlightClosures):
    """For the closures of all kinds of training steps: one object, because a round may be of any kind.

    Args:
      rule: by which workers take closures; None for TensorFlow's rule, or `WorkerClocks` if the mode has a `staleness`.

    Attributes:
      dealt_input: the class of the input, where the chief decides which batch a closure reads.
    """

    dealt_input = DealtInput

    def __init__(
        self, distribution: Distribution, consistency: choices.ConsistencyChoice, rule: Rule | None = None
    ) -> None:
        super().__init__(distribution, max_delay=consistency.max_delay)
        self._num_workers = distribution.num_workers
        self._queue = ClosureQueue.of(self._coordinator)
        self._num_cut = 0
        if consistency.staleness is not None:
            rule = WorkerClocks(distribution.num_workers, consistency.staleness)
        self._queue.follow(rule)

    @abc.abstractmethod
    def steps(self, kind: StepKind) -> Steps:
        """Makes the scheduler of the steps of a kind; traces the closure.

        Raises:
          ConfigError: the program, or an option of the trainer, does not suit the mode.
        """

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

    def count_cut(self) -> None:
        """Counts a step that some parameter servers apply later than others, since its worker was lost."""
        self._num_cut += 1

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
        waited_s = {worker: round(seconds, 3) for worker, seconds in self._queue.waited_s().items()}
        return {"waited_s": self.by_worker(waited_s, 0.0), "cut_steps": self._num_cut}

    def virtual_time(self) -> dict[str, float]:
        """The virtual time of workers that this process plays; empty where there is none. Call at a join.

        Returns:
          `time_s`: as `virtual_s`. `seconds`, `steps_per_s`, `examples_per_s`: of the
          steps since the last call.
        """
        return {}

    def prediction(self) -> Mapping[str, Any]:
        """What is predicted of the training on workers that this process plays, as run.json has it; empty where nothing
        is. Call with the steps made.
        """
        return {}

    def virtual_s(self) -> float:
        """Virtual seconds since the training began, in all processes; 0 where there is no virtual time."""
        return 0.0

    def by_worker(self, values: Mapping[int, float], default: float) -> dict[str, float]:
        """A value of each worker by its task."""
        return {f"worker-{index}": values.get(index, default) for index in range(self._num_workers)}
