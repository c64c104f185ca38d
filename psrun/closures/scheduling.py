"""Schedules steps on workers: asynchronously, several in one closure, or in rounds that are applied
at once.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.closures.server_updates import AppliedSteps, Execution, GradientRounds
from psrun.closures.stage import Inputs
from psrun.closures.stages import Closure
from psrun.closures.training_closures import InFlightClosures, Packed, StepKind, TrainingClosures
from psrun.cluster.strategy import Distribution
from psrun.config import choices
from psrun.tf_internals.coordinator import Again

# Writing ten out took 5 to 9 s of training and saved 2 to 3 ms a step, with a tiny and a large model on two slow cores:
# what it costs comes back after some 2,300 to 3,300 steps.
_STEPS_TO_UNROLL_FOR = 4000
# Steps as slow as this gain nothing by it, and ten of them without a sign of life could be taken for a hang.
_SLOW_STEP_S = 1.0
_MOST_STEP_S = 10.0
# How long a closure is to take where the number of its steps is chosen. Its dispatch costs a millisecond or two of the
# coordinator's one thread (docs/explanation/measurements.md), which is to be busy at most half of the time, with any
# number of workers.
_CLOSURE_S = 0.1
_CLOSURE_PER_WORKER_S = 0.0033
_MOST_CHOSEN = 200
_MEASURED_PER_WORKER = 4


class AsynchronousClosures(TrainingClosures):
    """Closures of several steps, each of which is applied when a worker has done it.

    Attributes:
      num_kinds: number of kinds of steps that are scheduled.
    """

    def __init__(self, distribution: Distribution, consistency: choices.ConsistencyChoice) -> None:
        super().__init__(distribution, consistency)
        self.num_kinds = 0

    def steps(self, kind: StepKind) -> AsynchronousSteps:
        applied = AppliedSteps(kind.program, self.most, is_plain=kind.is_plain)
        closure = kind.closure([applied, *self.stages(kind.program)])
        self.num_kinds += 1
        steps = AsynchronousSteps(kind, self, applied, closure, closure.trace(1, num_steps=None))
        steps.begin()
        return steps


class AsynchronousSteps:
    """Schedules steps on the workers of a coordinator, several in a closure.

    Args:
      in_flight: the closures of all kinds of steps.
      applied: a stage of the closure.
      looped: the closure, traced with a loop over its steps.

    Attributes:
      num_steps, logs: as in `Steps`.
    """

    def __init__(
        self, kind: StepKind, in_flight: AsynchronousClosures, applied: AppliedSteps, closure: Closure, looped: Any
    ) -> None:
        program = kind.program
        self._kind = kind
        self._program = program
        self._in_flight = in_flight
        self._feed = kind.feed
        self._iterator = kind.iterator
        self._applied = applied
        self._closure = closure
        self._looped = looped
        self._unrolled: Any = None
        self._cut: list[tuple[Inputs, frozenset[int]]] = []  # the batch of a step, and the servers behind
        self._completing: dict[frozenset[int], Any] = {}  # functions of a step, by the servers that apply it
        self._first_iteration = program.iterations
        self._num_scheduled = 0
        self._ran_again = False
        trainer = program.config.trainer
        self._late = trainer.prefetch_rows or trainer.dense_sync_every > 1  # only unrolled steps can be
        self._unrolled_steps = 1
        if self._late or kind.planned >= _STEPS_TO_UNROLL_FOR:
            self._unrolled_steps = choices.MAX_UNROLLED_STEPS
        self._timer: ClosureTimer | None = None
        self.num_steps = 1
        if trainer.steps_per_execution == "auto":
            self._timer = ClosureTimer(in_flight, program.distribution.num_workers)
        else:
            self.num_steps = trainer.num_steps_packed
        self._num_closures = 0
        self._began_s = 0.0
        self.logs: Any = kind.logs

    def begin(self) -> None:
        """Call before the first step: reports the length of closures if it is configured."""
        if self._timer is None:
            self._report(None)

    def schedule(self, most: int) -> int:
        """Schedules a closure of `num_steps` steps, at most `most`. Returns its number of steps."""
        num_steps = min(self.num_steps, most)
        if self._timer is not None:
            self._timer.resume()
        scheduled = self._schedule(num_steps)
        if self._looped.structured_outputs is not None:
            self.logs = scheduled
        self._num_scheduled += num_steps
        self._num_closures += 1
        if self._num_closures == 1:
            self._began_s = time.monotonic()
        self._improve(num_steps)
        return num_steps

    def _schedule(self, num_steps: int) -> Any:
        """Schedules a closure of so many steps; returns its remote value."""
        batches = self._feed.deal(num_steps)
        inputs: dict[str, Any] = {"measured": tf.constant(self._kind.profiler.wanted())}
        function = self._unrolled
        if num_steps != self.num_steps or function is None:
            function = self._looped
            inputs["num_steps"] = tf.constant(num_steps)
        return self._execute(function, inputs, batches, self._applied.claim(num_steps))

    def _improve(self, num_steps: int) -> None:
        """Chooses the number of steps, or unrolls them, if that is due after a closure of `num_steps` steps."""
        if self._timer is not None:
            if num_steps == self.num_steps:
                self._choose(self._timer)
            return
        is_measured = self._num_closures == 2 * self._in_flight.most
        if is_measured and self._unrolled is None and not self._slow():
            self._unroll()  # while the workers are busy: the first step does not wait for the trace

    def _slow(self) -> bool:
        """Whether steps are so slow that unrolling gains nothing. At least half of the scheduled closures are done."""
        if self._late:
            return False
        return self._step_s() > _SLOW_STEP_S

    def _step_s(self) -> float:
        """Seconds of a step on a worker, at most: at least half of the scheduled closures are done."""
        steps_per_worker = self._num_closures * self.num_steps / 2 / self._program.distribution.num_workers
        return (time.monotonic() - self._began_s) / max(steps_per_worker, 1.0)

    def _execute(self, function: Any, inputs: Inputs, batches: Inputs, execution: Execution) -> Any:
        again = functools.partial(self._again, execution, batches)
        scheduled = self._in_flight.schedule(function, self._flat(inputs, batches, execution), again)
        execution.follow(scheduled)
        return scheduled

    def _flat(self, inputs: Inputs, batches: Inputs, execution: Execution) -> tuple[Any, ...]:
        counts = tf.constant(execution.slot, tf.int32)
        return self._closure.flat({"iterator": self._iterator, **inputs, **batches, "counts": counts})

    def _again(self, execution: Execution, batches: Inputs) -> Again | None:
        """What an execution of a lost worker is to do instead; called in a thread of the coordinator.

        It goes on behind the last step that a server has applied. `join` completes steps that were cut.
        """
        try:
            done = self._applied.done(execution, min(self._step_s(), _MOST_STEP_S))
        except tf.errors.OpError:
            return None  # a parameter server is lost, too, which ends the attempt
        self._ran_again = True
        start = max(done.values(), default=0)
        least = min(done.values(), default=0)
        if execution.servers is not None:
            return self._completed_again(execution, batches, done) if start else None
        if self._looped.structured_outputs is not None:
            start = min(start, execution.num_steps - 1)  # the last step has the values that the closure returns
        for step in range(least, start):
            behind = frozenset(task for task, number in done.items() if number <= step)
            self._in_flight.count_cut()
            if self._feed.is_dealt:  # else nobody can read its batch again
                self._cut.append((self._feed.later(batches, step), behind))
        execution.begin_at(start, done)
        if start == execution.num_steps:
            return Again(self._nothing, ())
        rest = {"num_steps": tf.constant(execution.num_steps - start), "measured": tf.constant(False)}
        return Again(self._looped, self._flat(rest, self._feed.later(batches, start), execution))

    def _completed_again(self, execution: Execution, batches: Inputs, done: Mapping[int, int]) -> Again:
        """As `_again`, for an execution that completes a step, which some of its servers have applied now."""
        if behind := frozenset(task for task, number in done.items() if not number):
            self._cut.append((batches, behind))
        execution.begin_at(1, done)
        return Again(self._nothing, ())

    @functools.cached_property
    def _nothing(self) -> Any:
        """A function that does nothing, with results of the same types as the closures."""

        def zero(result: Any) -> Any:
            return None if result is None else tf.zeros(result.shape, result.dtype)

        results = tf.nest.map_structure(zero, self._looped.structured_outputs)
        return tf.function(lambda: results).get_concrete_function()

    def join(self) -> None:
        """Waits for all scheduled closures; raises the exception of a failed one."""
        self._in_flight.join()
        while self._cut:
            batches, behind = self._cut.pop()
            if behind not in self._completing:
                self._completing[behind] = self._completion(self._applied.servers - behind)
            execution = self._applied.claim(1, behind)
            self._execute(self._completing[behind], {"measured": tf.constant(False)}, batches, execution)
            self._in_flight.join()
        self._count_lost()
        if self._timer is not None:
            self._timer.pause()

    def _completion(self, skipped: Collection[int]) -> Any:
        """A function of one step that some servers do not apply."""
        with self._applied.skipping(skipped):
            return self._closure.trace(1, num_steps=1)

    def _count_lost(self) -> None:
        """Adds the steps of lost workers to the optimizer's counter, to which a worker adds at the end of a closure.

        With steps of other kinds nobody knows how many of the counter are theirs.
        """
        if not (self._ran_again and self._kind.is_plain and self._in_flight.num_kinds == 1):
            return
        self._ran_again = False
        missing = self._first_iteration + self._num_scheduled - self._program.iterations
        if missing:
            self._program.optimizer.iterations.assign_add(missing)

    def _report(self, step_s: float | None) -> None:
        trainer = self._program.config.trainer
        unrolled = max(1, min(self.num_steps, self._unrolled_steps))
        rows_late = int(trainer.prefetch_rows and unrolled > 1)
        weights_late = min(trainer.dense_sync_every, unrolled) - 1
        self._kind.on_packed(Packed(self.num_steps, step_s, rows_late, weights_late))

    def _choose(self, timer: ClosureTimer) -> None:
        """Chooses the number of steps from timed closures of one step, and if those are short, of ten."""
        closure_s = timer.closure_s()
        if closure_s is None:
            return
        steps_per_epoch = self._program.config.trainer.num_steps
        workers = self._program.distribution.num_workers
        before = self.num_steps
        step_s = closure_s / before
        self.num_steps = length_after(before, step_s, steps_per_epoch, workers, least=self._feed.least)
        if self.num_steps != before:
            self._unroll()
        if before != 1 or self.num_steps == 1:
            self._timer = None
            self._report(step_s)

    def _unroll(self) -> None:
        unrolled = min(self.num_steps, self._unrolled_steps)
        if unrolled > 1:
            self._unrolled = self._closure.trace(unrolled, num_steps=self.num_steps)


class ClosureTimer:
    """Measures the closures of workers. Pauses, in which nothing is scheduled, do not count."""

    def __init__(self, in_flight: InFlightClosures, num_workers: int) -> None:
        self._in_flight = in_flight
        self._num_workers = num_workers
        self._num_measured = 0
        self._since_s = 0.0
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


def length_after(num_steps: int, step_s: float, steps_per_epoch: int, num_workers: int, *, least: int) -> int:
    """The next number of steps where closures of `num_steps` took `step_s` seconds a step.

    Args:
      least: as in `Stream`.
    """
    ten = min(choices.MAX_UNROLLED_STEPS, steps_per_epoch)
    length = max(length_for(step_s, steps_per_epoch, num_workers), min(least, steps_per_epoch))
    if num_steps == 1 and step_s < _CLOSURE_S:
        return ten  # a closure of one step takes much more than the step: whether ten are enough is measured with ten
    if ten / 2 <= length <= ten:
        return ten
    return length


def length_for(step_s: float, steps_per_epoch: int, num_workers: int) -> int:
    """The number of steps of a closure where one takes `step_s` seconds on a worker.

    As many as fill 0.1 s, or longer with more than thirty workers; above ten a multiple of ten; slightly fewer if they
    then divide an epoch evenly.
    """
    closure_s = max(_CLOSURE_S, _CLOSURE_PER_WORKER_S * num_workers)
    most = min(max(1, round(closure_s / max(step_s, 1e-6))), _MOST_CHOSEN, steps_per_epoch)
    ten = choices.MAX_UNROLLED_STEPS
    possible = [*range(1, min(most, ten) + 1), *range(2 * ten, most + 1, ten)]
    even = [n for n in possible if steps_per_epoch % n == 0 and 2 * n > possible[-1]]
    return max(even or possible)


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
        in_order = list(self.done)
        chosen = in_order[:num_chosen]
        self._chosen = set(chosen)
        self.dropped.update(self.done[slot] for slot in in_order[num_chosen:])
        return sorted(chosen)

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        num_waiting = sum(mark is not None for mark in queued)
        for place, mark in enumerate(queued):
            if mark is None:
                return place
            if self._may_take(worker, num_waiting):
                # Gradients are summed in the order of the slots: with slots of their own, workers give equal sums in
                # each run, whichever is the fastest.
                own = _place_of_slot(worker, queued)
                return place if own is None else own
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


def _place_of_slot(index: int, queued: Sequence[Any]) -> int | None:
    """The place in the queue of the closure of a slot; None if it is not there."""
    for place, mark in enumerate(queued):
        if mark is not None and mark.index == index:
            return place
    return None


class RoundClosures(TrainingClosures):
    """The closures of rounds."""

    def __init__(self, distribution: Distribution, consistency: choices.ConsistencyChoice) -> None:
        self._rounds = UpdateRounds(distribution.num_workers)
        super().__init__(distribution, consistency, self._rounds)
        self._most = consistency.gradients_per_update(distribution.num_workers)
        self._least = self._most if consistency.min_workers is None else consistency.min_workers
        self._num_averaged = 0

    def steps(self, kind: StepKind) -> SynchronousSteps:
        kind.on_packed(Packed(1))
        rounds = GradientRounds(kind.program)
        closure = kind.closure([rounds, *self.stages(kind.program)])
        function = closure.trace(1, num_steps=1)
        return SynchronousSteps(kind, self, closure, function, rounds.apply_function())

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
        dropped = self.by_worker(self._rounds.dropped, 0)
        return {**super().facts(), "gradients_applied": self._num_averaged, "updates_dropped": dropped}


class SynchronousSteps:
    """Schedules synchronous steps, one in a closure; an update is applied before the next step.

    Args:
      function: the closure, traced; it pushes the gradients of a slot.
      apply: `GradientRounds.apply_function`.

    Attributes:
      num_steps, logs: as in `Steps`.
    """

    def __init__(self, kind: StepKind, closures: RoundClosures, closure: Closure, function: Any, apply: Any) -> None:
        self._kind = kind
        self._closures = closures
        self._closure = closure
        self._function = function
        self._apply = apply
        self._feed = kind.feed
        self._num_averaged = kind.program.gradients_per_update
        self.num_steps = 1
        self.logs: Any = kind.logs

    def schedule(self, most: int) -> int:
        """Computes and applies one update; returns 1, the number of its steps.

        Raises:
          tf.errors.OpError: a step failed.
        """
        number, num_averaged, num_slots = self._closures.begin_round()
        if num_averaged != self._num_averaged:
            self._kind.warn(f"gradients per update: {num_averaged} instead of {self._num_averaged}; "
                            f"live workers: {self._closures.num_live}")  # fmt: skip
            self._num_averaged = num_averaged
        if self._feed.is_dealt and self._kind.ends_epoch():
            num_slots = num_averaged  # so that every batch of the epoch is applied in it
        batches = []
        scheduled = []
        for index in range(num_slots):
            batch = self._feed.deal(1)
            batches.append(batch)
            scheduled.append(self._schedule_slot(Slot(number, index), batch))
        chosen = self._closures.first(num_averaged)
        self._feed.deal_again([batch for index, batch in enumerate(batches) if index not in chosen])
        self._apply(tf.constant(number, tf.int64), tf.constant(chosen, tf.int64))
        self._kind.meter.count_averaged()
        if self._function.structured_outputs is not None:
            self.logs = scheduled[chosen[-1]]
        return 1

    def _schedule_slot(self, slot: Slot, batch: Inputs) -> Any:
        place = {"round": tf.constant(slot.round, tf.int64), "slot": tf.constant(slot.index, tf.int64)}
        measured = tf.constant(self._kind.profiler.wanted())
        inputs = {"iterator": self._kind.iterator, "measured": measured, **batch, **place}
        return self._closures.schedule_slot(self._function, self._closure.flat(inputs), slot)

    def join(self) -> None:
        """Waits for late gradients; raises as `schedule`."""
        self._closures.join()
