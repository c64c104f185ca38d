"""The function of a closure: several steps, traced with all that makes them cheap on a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from psrun.closures.applied_steps import AppliedSteps
from psrun.closures.dense_bundling import DenseBundles
from psrun.closures.gradient_rounds import GradientRounds
from psrun.closures.input_streams import Stream
from psrun.closures.row_prefetch import RowPrefetch
from psrun.closures.slow_workers import SlowWorkers
from psrun.closures.staleness_meter import StalenessMeter
from psrun.closures.step_profiler import StepProfiler, Unmeasured
from psrun.closures.worker_local_variables import CannotBeKept, WorkerLocalVariables
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program, metric_variables
from psrun.program.replicas import Replicas
from psrun.tf_internals.cluster import iterator_spec
from psrun.tf_internals.optimizers import counters
from psrun.tf_internals.tracing import unconverted

# What is done with one batch, as a network's `train_step`.
Step = Callable[[Any], Any]
# Within it a number of steps is traced. Told how many, and what takes a batch, it gives what the steps take theirs by.
InClosure = Callable[[int, Callable[[], Any]], contextlib.AbstractContextManager[Callable[[], Any]]]

# Called in a closure before any step, with the number of steps and the arguments of the closure.
Begin = Callable[..., None]


class ClosureTracer:
    """Traces the functions of closures of one kind of step.

    Args:
      feed: where the steps get their batches.
      iterator: of `feed` on the workers.
      stages: measure where the time of steps goes.
      slow: slows down some workers.
      meter: measures the staleness of updates.
      step: of one batch; None for the network's own `train_step`.
      rounds: takes the gradients of a step; None if the step itself updates.
      applied: counts applied steps; its slot is the last argument of a closure. None with `rounds`.

    Raises:
      ConfigError: weights cannot be exchanged as rarely as `trainer.dense_sync_every` asks.
    """

    def __init__(
        self,
        program: Program,
        feed: Stream,
        iterator: Any,
        stages: StepProfiler,
        slow: SlowWorkers,
        meter: StalenessMeter,
        step: Step | None = None,
        rounds: GradientRounds | None = None,
        applied: AppliedSteps | None = None,
    ) -> None:
        trainer = program.config.trainer
        self._program, self._feed, self._stages, self._step = program, feed, stages, step
        self._slow, self._rounds, self._applied = slow, rounds, applied
        self._skipped: Collection[int] = ()
        self._iterator_spec = iterator_spec(iterator)
        self._bundles = DenseBundles(
            program, meter, trainer.dense_sync_every, rows_ahead=trainer.prefetch_rows, applied=applied
        )
        self._prefetch = RowPrefetch(program) if trainer.prefetch_rows else None
        self._kept = WorkerLocalVariables(metric_variables(program), counters(program.optimizer))
        if trainer.dense_sync_every > 1 and not self._bundles:
            raise ConfigError(
                [Problem("trainer.dense_sync_every", "is not supported with this optimizer and model, or with several "
                         "replicas per worker; set it to 1")]
            )  # fmt: skip

    def trace(self, unrolled: int, *, num_steps: int | None, skipped: Collection[int] = ()) -> Any:
        """A concrete function of an iterator and, without `num_steps`, of a number of steps; see `packed`.

        Another kind of function `schedule` would trace again, and more than once.

        Args:
          skipped: parameter servers that do not apply the steps.
        """
        self._skipped = skipped
        count = (tf.TensorSpec([], tf.int32),) if num_steps is None else ()
        specs = (self._iterator_spec, *count, tf.TensorSpec([], tf.bool), *self._feed.specs)
        specs = (
            *specs,
            *(self._rounds.specs if self._rounds else ()),
            *([self._applied.spec] if self._applied else ()),
        )
        while True:
            steps = packed(
                self._program,
                self._step,
                self._feed,
                self._in_closure,
                self._stages,
                self._begin,
                unrolled=unrolled,
                num_steps=num_steps,
            )
            with self._program.distribution.strategy.scope(), contextlib.suppress(CannotBeKept):  # then with fewer kept
                return steps.get_concrete_function(*specs)

    def _begin(self, num_steps: tf.Tensor | int, *arguments: tf.Tensor) -> None:
        self._feed.begin(num_steps, *arguments)
        self._slow.begin()
        if self._rounds is not None:
            self._rounds.begin(*arguments[len(self._feed.specs) :])
        if self._applied is not None:
            self._applied.begin(arguments[-1])

    @contextlib.contextmanager
    def _in_closure(self, num_steps: int, take: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
        batches = self._prefetch.batches(num_steps, take) if self._prefetch else take
        rounds = self._rounds.in_closure() if self._rounds else contextlib.nullcontext()
        with (
            self._kept.in_closure(),
            self._bundles.in_closure(num_steps) as next_step,
            rounds,
            self._slow.in_closure(),
            self._applied.in_closure(self._skipped) if self._applied else contextlib.nullcontext(),
        ):

            def next_batch() -> Any:
                if self._applied is not None:
                    self._applied.next()
                next_step()
                return batches()

            yield next_batch


def packed(
    program: Program,
    step: Step | None,
    feed: Stream,
    in_closure: InClosure,
    stages: Unmeasured,
    begin: Begin,
    unrolled: int = 1,
    num_steps: int | None = None,
) -> Any:
    """The function of a closure. Its arguments: iterator, number of steps (absent if `num_steps` is given), whether to
    measure the stages, and those of `begin`, of which the first are those of `feed`.

    It returns what the network's `train_step` returned in the last step, without metrics. The return value of `step`
    is dropped: results of a closure are sent to the chief.

    Args:
      step: trains on one batch; None for the network's `train_step`, as in Keras.
      begin: called before any step; it calls that of `feed`.
      unrolled: number of unrolled steps; a loop over them does the others.
      num_steps: number of steps; None if each call passes it, which requires `unrolled` 1.
    """
    train_step, replicas = step or program.network.train_step, Replicas(program)
    own = program.own_step if step is None else None

    def unrolled_steps(take: Callable[[], Any], count: int, spent: tf.Tensor) -> Any:
        outputs: Any = None
        steps = stages.steps()
        with in_closure(count, steps.timed(take)) as next_batch:
            for _ in range(count):
                outputs = replicas.run(train_step, next_batch())
                spent = steps.done(spent)
        return spent, None if own is None else own.plain(outputs)

    if num_steps is None:
        steps = _given(unrolled_steps, begin, feed, stages, returns=own is not None)
    else:
        steps = _known(unrolled_steps, begin, feed, stages, unrolled, num_steps)
    return steps if program.config.trainer.run_eagerly else unconverted(steps)


# Traces some steps. Arguments: function that returns the next batch, number of steps, time spent so far. Returns the
# time spent and the result of the last step.
Unrolled = Callable[[Callable[[], Any], int, tf.Tensor], Any]


def _known(
    unrolled_steps: Unrolled, begin: Begin, feed: Stream, stages: Unmeasured, unrolled: int, num_steps: int
) -> Any:
    rounds, rest = divmod(num_steps, unrolled)
    rest = rest or unrolled

    def known(iterator: Any, measured: tf.Tensor, *arguments: tf.Tensor) -> Any:
        def some_steps(number: tf.Tensor, spent: tf.Tensor) -> tf.Tensor:
            return unrolled_steps(feed.taker(iterator, number * unrolled, *arguments), unrolled, spent)[0]

        begin(num_steps, *arguments)
        spent = stages.begin()
        if num_steps > rest:
            spent = _repeated(rounds - (rest == unrolled), some_steps, spent)
        spent, outputs = unrolled_steps(feed.taker(iterator, num_steps - rest, *arguments), rest, spent)
        _end(measured, stages, spent)
        return outputs

    return known


def _given(unrolled_steps: Unrolled, begin: Begin, feed: Stream, stages: Unmeasured, *, returns: bool) -> Any:
    def given(iterator: Any, count: tf.Tensor, measured: tf.Tensor, *arguments: tf.Tensor) -> Any:
        def step(number: tf.Tensor, spent: tf.Tensor) -> tf.Tensor:
            return unrolled_steps(feed.taker(iterator, number, *arguments), 1, spent)[0]

        begin(count, *arguments)
        outputs, spent = None, stages.begin()
        if returns:  # otherwise one trace of the step less
            spent = _repeated(count - 1, step, spent)
            spent, outputs = unrolled_steps(feed.taker(iterator, count - 1, *arguments), 1, spent)
        else:
            spent = _repeated(count, step, spent)
        _end(measured, stages, spent)
        return outputs

    return given


def _repeated(times: tf.Tensor | int, call: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], spent: tf.Tensor) -> tf.Tensor:
    """The last of the values that `call` returns for the numbers from 0 and the value before, of which `spent` is the
    first.
    """
    return tf.while_loop(
        lambda number, spent: number < times,
        lambda number, spent: (number + 1, call(number, spent)),
        (tf.constant(0), spent),
    )[1]


def _end(measured: tf.Tensor, stages: Unmeasured, spent: tf.Tensor) -> None:
    """Ends a closure that is perhaps measured."""

    def end() -> tuple[()]:
        stages.end(spent)
        return ()

    tf.cond(measured, end, lambda: ())
