"""Schedules steps on workers: asynchronously, several in one closure, or as updates from the gradients of several
closures.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.closures.rules import Dropped, Gradient, Update, rule_of
from psrun.closures.server_updates import AppliedSteps, Execution, GradientQueue
from psrun.closures.stage import Inputs, Stage
from psrun.closures.stages import Closure
from psrun.closures.training_closures import InFlightClosures, Packed, StepKind, Steps, TrainingClosures
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
    most_chosen = round(_MOST_CHOSEN * closure_s / _CLOSURE_S)
    most = min(max(1, round(closure_s / max(step_s, 1e-6))), most_chosen, steps_per_epoch)
    ten = choices.MAX_UNROLLED_STEPS
    possible = [*range(1, min(most, ten) + 1), *range(2 * ten, most + 1, ten)]
    even = [n for n in possible if steps_per_epoch % n == 0 and 2 * n > possible[-1]]
    return max(even or possible)


class QueuedClosures(TrainingClosures):
    """The closures of modes in which the gradients of several batches make an update."""

    def __init__(self, distribution: Distribution, consistency: choices.ConsistencyChoice) -> None:
        self._rule = rule_of(consistency, distribution.num_workers)
        super().__init__(distribution, consistency, self._rule)
        self._only_dense = consistency.updates_rows
        self._decays = consistency.queue.decay < 1
        self._last: QueuedSteps | None = None
        self._num_averaged = 0
        self._weight = 0.0
        self._num_applied = 0
        self._applying_s = 0.0  # without the first update, which traces

    def steps(self, kind: StepKind) -> QueuedSteps:
        kind.on_packed(Packed(1))
        queue = GradientQueue(kind.program, has_weights=self._decays, only_dense=self._only_dense)
        stages: list[Stage] = [queue, *self.stages(kind.program)]
        rows: RowUpdates | None = None
        if self._only_dense:
            applied = AppliedSteps(kind.program, self._rule.most_pending, is_plain=kind.is_plain, runs_whole=True)
            stages.append(applied)
            rows = RowUpdates(applied)
        closure = kind.closure(stages)
        function = closure.trace(1, num_steps=1)
        return QueuedSteps(kind, self, closure, function, queue.apply_function(), rows)

    @property
    def num_live(self) -> int:
        """The number of workers that are not lost."""
        return self._rule.num_live

    @property
    def num_averaged(self) -> int:
        """How many gradients make the next update."""
        return self._rule.num_averaged

    def begin(self, steps: QueuedSteps) -> None:
        """Call before steps of a kind are scheduled: gradients of another kind are no part of their updates."""
        if self._last is not None and self._last is not steps:
            self._last.drop()
        self._last = steps

    def deal(self, steps_left: int | None, schedule: Callable[[Gradient], None], *, together: bool) -> None:
        """Schedules the closures of the gradients to compute from now on.

        Args:
          steps_left: as in `StepKind`.
          schedule: schedules the closure of a gradient, by `schedule_gradient`.
          together: whether workers take them when all of them are scheduled, so that each worker finds its own.
        """
        with self._queue.locked():
            gradients = self._rule.deal(steps_left)
        with self._queue.together() if together else contextlib.nullcontext():
            for gradient in gradients:
                schedule(gradient)

    def schedule_gradient(
        self,
        function: Any,
        arguments: Sequence[Any],
        gradient: Gradient,
        again: Callable[[], Again | None] | None = None,
    ) -> Any:
        """Schedules the closure of a gradient; the arguments and errors of `schedule`."""
        with self._queue.marking(gradient, again):
            return self._coordinator.schedule(function, args=tuple(arguments))

    def next_update(self) -> Update:
        """Waits for the gradients of the next update, and drops the gradients that are too late then.

        Raises:
          tf.errors.OpError: a closure failed.
        """
        if not self._queue.wait_for(self._rule.is_due):
            self._coordinator.join()
            raise AssertionError("a closure failed without an error")
        with self._queue.locked():
            update = self._rule.take()
        self._num_averaged += len(update.numbers)
        self._weight += sum(update.weights)
        return update

    def applied(self, seconds: float) -> None:
        """Call when an update is applied, with the seconds that this took."""
        if self._num_applied:
            self._applying_s += seconds
        self._num_applied += 1
        with self._queue.locked():
            self._rule.applied()

    def drop(self) -> list[Dropped]:
        """Drops gradients that are not applied yet, and returns them, as `GradientRule.drop`."""
        with self._queue.locked():
            return self._rule.drop()

    def facts(self) -> dict[str, Any]:
        """Also `gradients_applied`, `updates_dropped`: how many gradients of each worker were dropped, `update_s`: mean
        seconds in which the chief applied an update, and `weight`: the mean weight of the applied gradients, if it
        depends on their age.
        """
        dropped = self.by_worker(self._rule.dropped, 0)
        facts = {**super().facts(), "gradients_applied": self._num_averaged, "updates_dropped": dropped}
        if self._num_applied > 1:
            facts["update_s"] = round(self._applying_s / (self._num_applied - 1), 6)
        if self._decays and self._num_averaged:
            facts["weight"] = round(self._weight / self._num_averaged, 4)
        return facts


class RowUpdates:
    """The rows that closures update themselves, where only dense gradients wait for each other."""

    def __init__(self, applied: AppliedSteps) -> None:
        self._applied = applied

    def claim(self, *, have_applied: bool) -> Execution:
        """An execution of one step.

        Args:
          have_applied: whether all servers have updated the rows of its batch before.
        """
        return self._applied.claim(1, () if have_applied else None)

    def inputs(self, execution: Execution, have_applied: Collection[int]) -> Inputs:
        """The inputs of a closure, some of whose servers have updated the rows."""
        servers = range(len(self._applied.servers))
        return {
            "counts": tf.constant(execution.slot, tf.int32),
            "have_applied": tf.constant([task in have_applied for task in servers]),
        }

    @property
    def servers(self) -> Collection[int]:
        """All parameter servers."""
        return self._applied.servers

    def remaining(self, execution: Execution) -> Inputs | None:
        """The inputs of the closure of a lost worker, which runs again; None if a parameter server is lost, too."""
        try:
            done = self._applied.done(execution, _SLOW_STEP_S)
        except tf.errors.OpError:
            return None  # which ends the attempt
        return self.inputs(execution, frozenset(task for task, number in done.items() if number))


@dataclass(frozen=True)
class _Pending:
    """A gradient that is not applied yet.

    Attributes:
      scheduled: the remote value of its closure.
      execution: of the rows that its closure updates itself.
    """

    batch: Inputs
    scheduled: Any
    execution: Execution | None = None


class QueuedSteps:
    """Schedules steps that are one update each, of the gradients of several closures.

    Args:
      function: the closure, traced; it pushes a gradient.
      apply: `GradientQueue.apply_function`.
      rows: the rows that closures update themselves; None if an update has all variables.

    Attributes:
      num_steps, logs: as in `Steps`.
    """

    def __init__(
        self,
        kind: StepKind,
        closures: QueuedClosures,
        closure: Closure,
        function: Any,
        apply: Any,
        rows: RowUpdates | None = None,
    ) -> None:
        self._rows = rows
        self._kind = kind
        self._closures = closures
        self._closure = closure
        self._function = function
        self._apply = apply
        self._feed = kind.feed
        self._num_averaged = kind.program.gradients_per_update
        self._pending: dict[int, _Pending] = {}  # by number
        self.num_steps = 1
        self.logs: Any = kind.logs

    def schedule(self, most: int) -> int:
        """Applies one update; returns 1, the number of its steps. Gradients of later updates may be on their way.

        Raises:
          tf.errors.OpError: a step failed.
        """
        self._closures.begin(self)
        self._closures.deal(self._kind.steps_left(), self._schedule_gradient, together=not self._feed.is_dealt)
        self._warn()
        update = self._closures.next_update()
        self._deal_again(update.late)
        numbers, kept = tf.constant(update.numbers, tf.int64), tf.constant(update.kept, tf.int64)
        began_s = time.monotonic()
        self._apply(numbers, kept, tf.constant(update.weights, tf.float32))
        self._closures.applied(time.monotonic() - began_s)
        applied = [self._pending.pop(number) for number in update.numbers]
        self._kind.meter.count_averaged(update.ages)
        if self._function.structured_outputs is not None:
            self.logs = applied[-1].scheduled
        return 1

    def _warn(self) -> None:
        num_averaged = self._closures.num_averaged
        if num_averaged == self._num_averaged:
            return
        self._kind.warn(f"gradients per update: {num_averaged} instead of {self._num_averaged}; "
                        f"live workers: {self._closures.num_live}")  # fmt: skip
        self._num_averaged = num_averaged

    def _schedule_gradient(self, gradient: Gradient) -> None:
        batch = self._feed.deal(1)
        if self._rows is None:
            arguments = self._arguments(gradient, batch, {})
            scheduled = self._closures.schedule_gradient(self._function, arguments, gradient)
            self._pending[gradient.number] = _Pending(batch, scheduled)
        else:
            self._pending[gradient.number] = self._schedule_with_rows(self._rows, gradient, batch)

    def _schedule_with_rows(self, rows: RowUpdates, gradient: Gradient, batch: Inputs) -> _Pending:
        """Schedules a closure that updates rows, too."""
        have_applied = self._feed.is_partly_applied(batch)
        execution = rows.claim(have_applied=have_applied)

        def again() -> Again | None:
            """Pushes the gradient again; servers update the rows that they have not updated."""
            remaining = None if have_applied else rows.remaining(execution)
            if remaining is None:
                return None
            return Again(self._function, self._arguments(gradient, batch, remaining))

        arguments = self._arguments(gradient, batch, rows.inputs(execution, rows.servers if have_applied else ()))
        scheduled = self._closures.schedule_gradient(self._function, arguments, gradient, again)
        execution.follow(scheduled)
        return _Pending(batch, scheduled, execution)

    def _arguments(self, gradient: Gradient, batch: Inputs, rows: Inputs) -> tuple[Any, ...]:
        inputs = {
            "iterator": self._kind.iterator,
            "measured": tf.constant(self._kind.profiler.wanted()),
            **batch,
            **rows,
            "gradient": tf.constant(gradient.number, tf.int64),
        }
        return self._closure.flat(inputs)

    def _deal_again(self, gradients: Sequence[Dropped]) -> None:
        """Other closures get the batches of dropped gradients."""
        for gradient in gradients:
            pending = self._pending.pop(gradient.number)
            has_updated_rows = self._feed.is_partly_applied(pending.batch)
            if pending.execution is not None and gradient.was_taken:
                has_updated_rows = True
            elif pending.execution is not None:
                pending.execution.num_steps = 0  # it does not run
            self._feed.deal_again([pending.batch], partly=has_updated_rows)

    def drop(self) -> None:
        """Drops gradients that are not applied yet; their batches are dealt again."""
        self._deal_again(self._closures.drop())

    def join(self) -> None:
        """Drops gradients that are not applied yet, and waits for closures; raises as `schedule`."""
        self.drop()
        self._closures.join()


class ScheduledClosures:
    """The closures of the mode that holds at a step. All closures are joined before another mode begins.

    The interface of `TrainingClosures` to a training.
    """

    dealt_input = TrainingClosures.dealt_input

    def __init__(self, distribution: Distribution, consistency: choices.Scheduled) -> None:
        self._distribution = distribution
        self._modes = consistency.modes
        self._begun = -1  # the step from which on the present mode holds
        self._now: TrainingClosures | None = None
        self._facts: dict[str, Any] = {}
        self._kinds: list[ScheduledSteps] = []

    def steps(self, kind: StepKind) -> ScheduledSteps:
        steps = ScheduledSteps(kind, self)
        self._kinds.append(steps)
        return steps

    def at(self, step: int) -> tuple[TrainingClosures, int | None]:
        """The closures of a step, and the step from which on another mode holds, None if there is none."""
        begun = max(first for first in self._modes if first <= step)
        if begun != self._begun:
            for steps in self._kinds:
                steps.join()
            self._facts = self.facts()
            mode = self._modes[begun]
            self._now = mode.load()(self._distribution, mode)
            self._begun = begun
        assert self._now is not None
        return self._now, min((first for first in self._modes if first > step), default=None)

    def facts(self) -> dict[str, Any]:
        """The facts of all modes so far: of those with the same name, the last one's, and sums of what was counted."""
        if self._now is None:
            return {}
        facts = dict(self._facts)
        for name, value in self._now.facts().items():
            before = facts.get(name)
            if name in _COUNTED and isinstance(before, dict):
                facts[name] = {task: before.get(task, 0) + number for task, number in value.items()}
            elif name in _COUNTED and before is not None:
                facts[name] = before + value
            else:
                facts[name] = value
        return facts


_COUNTED = ("cut_steps", "gradients_applied", "updates_dropped")


class ScheduledSteps:
    """Schedules the steps of a kind by the mode that holds at each of them."""

    def __init__(self, kind: StepKind, closures: ScheduledClosures) -> None:
        self._kind = kind
        self._closures = closures
        self._by_mode: tuple[TrainingClosures, Steps] | None = None

    @property
    def num_steps(self) -> int:
        """As in `Steps`."""
        return 1 if self._by_mode is None else self._by_mode[1].num_steps

    @property
    def logs(self) -> Any:
        """As in `Steps`."""
        return self._kind.logs if self._by_mode is None else self._by_mode[1].logs

    def schedule(self, most: int) -> int:
        """As in `Steps`."""
        step = self._kind.num_scheduled()
        closures, end = self._closures.at(step)
        if self._by_mode is None or self._by_mode[0] is not closures:
            self._by_mode = closures, closures.steps(self._kind)
        if end is not None:
            most = min(most, end - step)
        return self._by_mode[1].schedule(most)

    def join(self) -> None:
        """Waits for all scheduled steps; raises as `schedule`."""
        if self._by_mode is not None:
            self._by_mode[1].join()
