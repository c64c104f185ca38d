"""Schedules rounds of steps on workers, and applies the gradients of each round at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.closures import stages
from psrun.closures.closure import Closure
from psrun.closures.gradient_rounds import GradientRounds
from psrun.closures.input_streams import Stream
from psrun.closures.stage import Step
from psrun.closures.staleness_meter import StalenessMeter
from psrun.closures.step_profiler import StepProfiler
from psrun.closures.training_closures import TrainingClosures
from psrun.cluster.strategy import Distribution
from psrun.config import choices
from psrun.program.compiled_model import Program
from psrun.tf_internals.cluster import iterator_spec


@dataclass(frozen=True)
class Slot:
    """One gradient of a round: the mark of its closure."""

    round: int
    index: int


class UpdateRounds:
    """The rule by which workers take the closures of rounds, for `tf_internals.closure_queue`.

    Each live worker computes one gradient of a round. If there are more closures than live workers, because workers
    were lost, those that have computed one take another.

    Attributes:
      number: of the current round.
      done: the slots of the round that are done, with the workers, in the order in which they were done.
      dropped: how many gradients came too late, by worker.
    """

    def __init__(self, num_workers: int) -> None:
        self.number = 0
        self.done: dict[int, int] = {}
        self.dropped: Counter[int] = Counter()
        self._live = set(range(num_workers))
        self._took: dict[int, int] = {}  # the last round of each worker
        self._chosen: set[int] | None = None

    @property
    def num_live(self) -> int:
        return len(self._live)

    def begin(self) -> None:
        """Begins the next round."""
        self.number += 1
        self.done = {}
        self._chosen = None

    def choose_first(self, num_chosen: int) -> list[int]:
        """The first slots of the round that were done, sorted; the others are late from now on."""
        chosen = list(self.done)[:num_chosen]
        self._chosen = set(chosen)
        self.dropped.update(worker for slot, worker in self.done.items() if slot not in self._chosen)
        return sorted(chosen)

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        waiting = [mark for mark in queued if mark is not None]
        for place, mark in enumerate(queued):
            if mark is None:
                return place
            if self._may_take(worker, len(waiting)):
                # Gradients are summed in the order of the slots: with slots of their own, workers give equal sums in
                # each run, whichever is the fastest.
                own = (other for other, each in enumerate(queued) if each is not None and each.index == worker)
                return next(own, place)
        return None

    def _may_take(self, worker: int, num_waiting: int) -> bool:
        others = sum(self._took.get(each) != self.number for each in self._live)
        may = self._took.get(worker) != self.number or num_waiting > others
        if may:
            self._took[worker] = self.number
        return may

    def finished(self, worker: int, mark: Slot) -> None:
        if mark.round == self.number and self._chosen is None:
            self.done.setdefault(mark.index, worker)
        else:
            self.dropped[worker] += 1

    def left(self, worker: int) -> None:
        self._live.discard(worker)

    def returned(self, worker: int) -> None:
        self._live.add(worker)

    def is_over(self, mark: Slot) -> bool:
        return mark.round < self.number or self._chosen is not None


class RoundClosures(TrainingClosures):
    """The closures of rounds."""

    def __init__(self, distribution: Distribution, consistency: choices.ConsistencyChoice) -> None:
        self._rounds = UpdateRounds(distribution.num_workers)
        super().__init__(distribution, consistency, self._rounds)
        self._most = consistency.gradients_per_update(distribution.num_workers)
        self._least = self._most if consistency.min_workers is None else consistency.min_workers
        self._num_averaged = 0

    @property
    def num_live(self) -> int:
        """The number of workers that are not lost."""
        return self._rounds.num_live

    def begin_round(self) -> tuple[int, int, int]:
        """Begins a round; returns its number, how many gradients make an update, and how many to compute.

        With fewer live workers than an update has gradients, it has fewer, but not fewer than `min_workers`.
        """
        with self._queue.locked():
            self._rounds.begin()
            live = self._rounds.num_live
            num_averaged = max(self._least, min(self._most, live))
            return self._rounds.number, num_averaged, max(num_averaged, live)

    def schedule_slot(self, function: Any, arguments: Sequence[Any], slot: Slot) -> Any:
        """Schedules the closure of a slot of the current round; raises as `schedule`."""
        with self._queue.marking(slot):
            return self._coordinator.schedule(function, args=tuple(arguments))

    def first(self, num_averaged: int) -> list[int]:
        """Waits for so many slots of the current round, and ends it; returns those slots, sorted.

        Raises:
          tf.errors.OpError: a closure failed.
        """
        if not self._queue.wait_for(lambda: len(self._rounds.done) >= num_averaged):
            self._coordinator.join()
            raise AssertionError("a closure failed without an error")
        with self._queue.locked():
            chosen = self._rounds.choose_first(num_averaged)
        self._queue.drop_what_is_over()
        self._num_averaged += num_averaged
        return chosen

    def facts(self) -> dict[str, Any]:
        """Also `gradients_applied`, and `updates_dropped`: how many gradients of each worker came too late."""
        dropped = self._rounds.dropped
        by_worker = {f"worker-{index}": dropped[index] for index in range(self._num_workers)}
        return {**super().facts(), "gradients_applied": self._num_averaged, "updates_dropped": by_worker}


class SynchronousSteps:
    """Schedules synchronous steps; the interface of `AsynchronousSteps`, with executions of one step.

    Args:
      closures, feed, profiler, meter, step: as for `AsynchronousSteps`.
      ends_epoch: whether the next step is the last one of its epoch.
      warn: called when an update begins to average another number of gradients.

    Attributes:
      num_steps, logs: as of `AsynchronousSteps`.
    """

    num_steps = 1

    def __init__(
        self,
        program: Program,
        closures: RoundClosures,
        feed: Stream,
        profiler: StepProfiler,
        meter: StalenessMeter,
        *,
        ends_epoch: Callable[[], bool],
        warn: Callable[[str], None],
        step: Step | None = None,
    ) -> None:
        distribution = program.distribution
        assert distribution.coordinator is not None
        self._closures = closures
        self._feed = feed
        self._profiler = profiler
        self._ends_epoch = ends_epoch
        self._warn = warn
        self._meter = meter
        self._iterator = feed.iterator(distribution.coordinator)
        rounds = GradientRounds(program)
        parts = [rounds, *closures.stages(program), *stages.on_workers(program, profiler, meter, warn)]
        self._closure = Closure(program, feed, parts, step, iterator_spec(self._iterator))
        self._function = self._closure.trace(1, num_steps=1)
        self._apply = rounds.apply_function()
        self._num_averaged = program.gradients_per_update
        self.logs: Any = dict.fromkeys((metric.name for metric in program.network.metrics), 0.0)

    def schedule(self, most: int) -> int:
        """Computes and applies one update; returns 1, the number of its steps.

        Raises:
          tf.errors.OpError: a step failed.
        """
        number, num_averaged, num_slots = self._closures.begin_round()
        if num_averaged != self._num_averaged:
            self._warn(f"gradients per update: {num_averaged} instead of {self._num_averaged}; "
                       f"live workers: {self._closures.num_live}")  # fmt: skip
            self._num_averaged = num_averaged
        if self._feed.is_dealt and self._ends_epoch():
            num_slots = num_averaged  # so that every batch of the epoch is applied in it
        batches, scheduled = [], []
        for index in range(num_slots):
            batches.append(self._feed.deal(1))
            place = {"round": tf.constant(number, tf.int64), "slot": tf.constant(index, tf.int64)}
            measured = tf.constant(self._profiler.wanted())
            inputs = {"iterator": self._iterator, "measured": measured, **batches[-1], **place}
            arguments = self._closure.flat(inputs)
            scheduled.append(self._closures.schedule_slot(self._function, arguments, Slot(number, index)))
        chosen = self._closures.first(num_averaged)
        self._feed.deal_again([batch for index, batch in enumerate(batches) if index not in chosen])
        self._apply(tf.constant(number, tf.int64), tf.constant(chosen, tf.int64))
        self._meter.count_averaged()
        if self._function.structured_outputs is not None:
            self.logs = scheduled[chosen[-1]]
        return 1

    def join(self) -> None:
        """Waits for late gradients; raises as `schedule`."""
        self._closures.join()
