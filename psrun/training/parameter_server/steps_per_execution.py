"""Several steps in one closure: the function that does them, and how many they are to be."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.cluster.inflight_closures import InFlightClosures
from psrun.config import choices
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program, metric_variables
from psrun.program.replicas import Replicas
from psrun.tf_internals.cluster import iterator_spec
from psrun.tf_internals.optimizers import counters
from psrun.training.input_streams import Stream
from psrun.training.parameter_server.closure_length import CLOSURE_S, chosen
from psrun.training.parameter_server.dense_bundling import DenseBundles
from psrun.training.parameter_server.row_prefetch import RowPrefetch
from psrun.training.parameter_server.step_profiler import StepProfiler, Unmeasured
from psrun.training.parameter_server.worker_local_variables import CannotBeKept, WorkerLocalVariables

# Writing ten out took 5 to 9 s of training and saved 2 to 3 ms a step, with a tiny and a large model on two slow cores:
# what it costs comes back after some 2,300 to 3,300 steps.
_STEPS_TO_UNROLL_FOR = 4000
# Steps as slow as this gain nothing by it, and ten of them without a sign of life could be taken for a hang.
_SLOW_STEP_S = 1.0
_MEASURED_PER_WORKER = 4


@dataclass(frozen=True)
class Packed:
    """How steps are packed.

    Attributes:
      num_steps: of a closure.
      step_s: seconds of a step on a worker, by which that was chosen; None where it was given.
      rows_late: how many of its own steps a worker's rows of tables lack at most.
      weights_late: the same of the weights that are read as a whole.
    """

    num_steps: int
    step_s: float | None = None
    rows_late: int = 0
    weights_late: int = 0


class Packing:
    """Schedules steps on the workers of a coordinator, several in a closure.

    Args:
      feed: where the steps get their batches.
      stages: measure where the time of steps goes.
      planned: how many steps are to come, in all.
      told: called with what is to be known of the packing, once it is.
      step: of one batch, in place of the network's own; what it returns is left out.

    Attributes:
      num_steps: of a closure; may change after the first ones.
      logs: what the network's own `train_step` returned beside metrics in the last step scheduled, as a value on its
        way. Where there is nothing, the names of the metrics with zeros: these are read once all is joined.
    """

    def __init__(
        self,
        program: Program,
        feed: Stream,
        stages: StepProfiler,
        told: Callable[[Packed], None],
        *,
        planned: int,
        step: Step | None = None,
    ) -> None:
        distribution, trainer = program.distribution, program.config.trainer
        assert distribution.coordinator is not None
        self._program, self._coordinator, self._step = program, distribution.coordinator, step
        self._in_flight, self._stages = InFlightClosures(distribution), stages
        self._feed, self._iterator = feed, feed.iterator(distribution.coordinator)
        self._bundles = DenseBundles(program, trainer.dense_sync_every)
        self._ahead = RowPrefetch(program) if trainer.prefetch_rows else None
        self._kept = WorkerLocalVariables(metric_variables(program), counters(program.optimizer))
        if trainer.dense_sync_every > 1 and not self._bundles:
            raise ConfigError(
                [Problem("trainer.dense_sync_every", "is not supported with this optimizer and model, or with several "
                         "replicas per worker; set it to 1")]
            )  # fmt: skip
        self._late = trainer.prefetch_rows or trainer.dense_sync_every > 1  # only steps that are written out can be
        self._unrolled_steps = choices.MOST_WRITTEN_OUT if self._late or planned >= _STEPS_TO_UNROLL_FOR else 1
        self._looped, self._unrolled, self._num_closures = self._traced(1, num_steps=None), None, 0
        self._measure = trainer.steps_per_execution == "auto"
        self._num_measured, self._since_s = 0, 0.0
        self._joined_s: float | None = None
        self._began_s = 0.0
        self._told = told
        self.num_steps = 1 if self._measure else trainer.num_steps_packed
        self.logs: Any = dict.fromkeys((metric.name for metric in program.network.metrics), 0.0)
        if not self._measure:
            self._tell(None)

    def schedule(self, most: int) -> int:
        """Schedules `num_steps` steps, or `most` where those are fewer; returns how many."""
        num_steps = min(self.num_steps, most)
        if self._joined_s is not None:  # what was done since then took no part in the steps
            self._since_s += time.monotonic() - self._joined_s
            self._joined_s = None
        told = (tf.constant(self._stages.wanted()), *self._feed.told(num_steps))
        if num_steps == self.num_steps and self._unrolled is not None:
            scheduled = self._coordinator.schedule(self._unrolled, args=(self._iterator, *told))
        else:
            scheduled = self._coordinator.schedule(self._looped, args=(self._iterator, tf.constant(num_steps), *told))
        self._in_flight.add(scheduled)
        if self._looped.structured_outputs is not None:
            self.logs = scheduled
        self._num_closures += 1
        if self._num_closures == 1:
            self._began_s = time.monotonic()
        if self._measure:
            if num_steps == self.num_steps:
                self._choose()
        elif self._num_closures == 2 * self._in_flight.most and self._unrolled is None and not self._slow():
            self._unroll()  # while the workers have something to do: the first step does not wait for it
        return num_steps

    def _slow(self) -> bool:
        """Whether the steps done so far were too slow for it: half of the closures scheduled are done at least."""
        if self._late:
            return False
        done = self._num_closures * self.num_steps / 2 / self._program.distribution.num_workers
        return time.monotonic() - self._began_s > _SLOW_STEP_S * done

    def join(self) -> None:
        """Waits for all that was scheduled; raises what one of the steps raised."""
        self._in_flight.join()
        self._joined_s = time.monotonic()

    @contextlib.contextmanager
    def _in_closure(self, num_steps: int, take: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
        batches = self._ahead.batches(num_steps, take) if self._ahead else take
        with self._kept.in_closure(), self._bundles.in_closure(num_steps) as next_step:

            @tf.autograph.experimental.do_not_convert
            def next_batch() -> Any:
                next_step()
                return batches()

            yield next_batch

    def _tell(self, step_s: float | None) -> None:
        trainer = self._program.config.trainer
        unrolled = max(1, min(self.num_steps, self._unrolled_steps))
        late = min(trainer.dense_sync_every, unrolled) - 1
        self._told(Packed(self.num_steps, step_s, int(trainer.prefetch_rows and unrolled > 1), late))

    def _closure_s(self) -> float | None:
        """Seconds of a closure on a worker, once known; each worker's first of the present kind does not count."""
        workers = self._program.distribution.num_workers
        self._num_measured += 1
        if self._num_measured == workers:
            self._in_flight.join()
            self._since_s = time.monotonic()
        if self._num_measured < (1 + _MEASURED_PER_WORKER) * workers:
            return None
        self._in_flight.join()
        self._num_measured = 0
        return (time.monotonic() - self._since_s) / _MEASURED_PER_WORKER

    def _choose(self) -> None:
        """Chooses the number of steps: by closures of one step, and where those are short by closures of ten."""
        closure_s = self._closure_s()
        if closure_s is None:
            return
        steps_per_epoch, workers = self._program.config.trainer.num_steps, self._program.distribution.num_workers
        step_s, before = closure_s / self.num_steps, self.num_steps
        ten = min(choices.MOST_WRITTEN_OUT, steps_per_epoch)
        wanted = max(chosen(step_s, steps_per_epoch, workers), min(self._feed.least, steps_per_epoch))
        if (before == 1 and step_s < CLOSURE_S) or ten / 2 <= wanted <= ten:
            wanted = ten  # a closure of one step takes much more than the step
        self.num_steps = wanted
        if self.num_steps != before:
            self._unroll()
        if before != 1 or wanted == 1:
            self._measure = False
            self._tell(step_s)

    def _unroll(self) -> None:
        unrolled = min(self.num_steps, self._unrolled_steps)
        if unrolled > 1:
            self._unrolled = self._traced(unrolled, num_steps=self.num_steps)

    def _traced(self, unrolled: int, *, num_steps: int | None) -> Any:
        """A concrete function of an iterator and, without `num_steps`, of a number of steps.

        Another kind of function `schedule` would trace again, and more than once.
        """
        spec = iterator_spec(self._iterator)
        count = (tf.TensorSpec([], tf.int32),) if num_steps is None else ()
        specs = (spec, *count, tf.TensorSpec([], tf.bool), *self._feed.specs)
        while True:
            steps = packed(self._program, self._step, self._feed, self._in_closure, self._stages, unrolled, num_steps)
            with self._program.distribution.strategy.scope(), contextlib.suppress(CannotBeKept):  # then with fewer kept
                return steps.get_concrete_function(*specs)


# What is done with one batch, as a network's `train_step`.
Step = Callable[[Any], Any]
# Within it a number of steps is traced. Told how many, and what takes a batch, it gives what the steps take theirs by.
InClosure = Callable[[int, Callable[[], Any]], contextlib.AbstractContextManager[Callable[[], Any]]]


def packed(
    program: Program,
    step: Step | None,
    feed: Stream,
    in_closure: InClosure,
    stages: Unmeasured,
    unrolled: int = 1,
    num_steps: int | None = None,
) -> Any:
    """A function of an iterator, a number of steps, which it does, whether to measure them, and what `feed` tells;
    without the number where that is known.

    Without a `step` it is the network's own `train_step`, as in Keras. What the last one returned beside metrics is
    returned, and what a `step` returns never: results of a closure travel to the chief.

    Args:
      unrolled: how many steps are written out; what is more is done in a loop over so many.
      num_steps: how many there are; None for a number given in each call, which needs `unrolled` to be 1.
    """
    train_step, replicas = step or program.network.train_step, Replicas(program)
    own = program.own_step if step is None else None

    def written_out(take: Callable[[], Any], count: int, spent: tf.Tensor) -> Any:
        outputs, steps = None, stages.steps()
        with in_closure(count, steps.timed(take)) as next_batch:
            for _ in range(count):
                outputs = replicas.run(train_step, next_batch())
                spent = steps.done(spent)
        return spent, None if own is None else own.plain(outputs)

    if num_steps is None:
        steps = _given(written_out, feed, stages, returns=own is not None)
    else:
        steps = _known(written_out, feed, stages, unrolled, num_steps)
    return steps if program.config.trainer.run_eagerly else tf.function(steps)


# Traces some steps: takes what gives their batches, how many they are, and what was spent before; returns what was
# spent then, and what the last of them returned.
WrittenOut = Callable[[Callable[[], Any], int, tf.Tensor], Any]


def _known(written_out: WrittenOut, feed: Stream, stages: Unmeasured, unrolled: int, num_steps: int) -> Any:
    rounds, rest = divmod(num_steps, unrolled)
    rest = rest or unrolled

    def known(iterator: Any, measured: tf.Tensor, *told: tf.Tensor) -> Any:
        feed.begin(num_steps, *told)
        spent = stages.begin()
        if num_steps > rest:
            for number in tf.range(rounds - (rest == unrolled)):
                spent, _ = written_out(feed.taker(iterator, number * unrolled, *told), unrolled, spent)
        spent, outputs = written_out(feed.taker(iterator, num_steps - rest, *told), rest, spent)
        if measured:
            stages.end(spent)
        return outputs

    return known


def _given(written_out: WrittenOut, feed: Stream, stages: Unmeasured, *, returns: bool) -> Any:
    def given(iterator: Any, count: tf.Tensor, measured: tf.Tensor, *told: tf.Tensor) -> Any:
        feed.begin(count, *told)
        outputs, spent = None, stages.begin()
        if returns:  # otherwise one trace of the step less
            for number in tf.range(count - 1):
                spent, _ = written_out(feed.taker(iterator, number, *told), 1, spent)
            spent, outputs = written_out(feed.taker(iterator, count - 1, *told), 1, spent)
        else:
            for number in tf.range(count):
                spent, _ = written_out(feed.taker(iterator, number, *told), 1, spent)
        if measured:
            stages.end(spent)
        return outputs

    return given
