"""The stages of a closure, in the one order in which they wrap a step, and the function that is traced with them.

The order goes from the outside of a step to its inside. A stage wraps the steps and the batches of those behind it.
Gradients leave a step from the inside: the last stage gets them first, and what the first one passes on is applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from psrun.closures.delays import SlowWorkers
from psrun.closures.input_streams import Stream
from psrun.closures.measurements import StalenessMeter, StepProfiler
from psrun.closures.replicas import AssignedWeights, Replicas, naming_assignments
from psrun.closures.server_updates import AppliedSteps, GradientQueue
from psrun.closures.stage import Apply, Inputs, Stage, Step, Take
from psrun.closures.worker_variables import (
    CannotBeKept,
    DenseBundles,
    RowPrefetch,
    WorkerLocalVariables,
    read_as_a_whole,
)
from psrun.program import whole_variables
from psrun.program.compiled_model import Program, metric_variables
from psrun.tf_internals import keras
from psrun.tf_internals.names import replaced
from psrun.tf_internals.tracing import unconverted

ORDER: tuple[type[Stage], ...] = (
    WorkerLocalVariables,  # writes back what all the others have added to a variable
    AppliedSteps,  # counts a step when all that it changes on a server is changed
    RowPrefetch,  # takes batches ahead of their steps: the profiler notes the arrival of each
    StepProfiler,  # measures a step with the messages of its bundles
    DenseBundles,  # fetches weights before the step, and pushes the gradients that the others let pass
    GradientQueue,  # takes the gradients instead of the optimizer
    Stage,  # stages of a consistency mode: they see gradients when they leave the worker
    SlowWorkers,  # a slow worker is one that has its gradients late
    AssignedWeights,  # looks at the operations of the forward pass
    Replicas,  # weights the gradients of each part of a batch, before anything waits for them
)


def on_workers(
    program: Program, profiler: StepProfiler, meter: StalenessMeter, warn: Callable[[str], None]
) -> list[Stage]:
    """The stages of every closure of a program, whatever its consistency mode is.

    Args:
      warn: called with what deserves attention in a step.

    Raises:
      ConfigError: weights or rows cannot be exchanged as the trainer's options ask.
    """
    trainer = program.config.trainer
    stages: list[Stage] = [
        WorkerLocalVariables(metric_variables(program), keras.counters_of_optimizer(program.optimizer)),
        profiler,
        DenseBundles(
            program,
            read_as_a_whole(program),
            meter,
            trainer.dense_sync_every,
            rows_ahead=trainer.prefetch_rows,
        ),
    ]
    if program.distribution.num_workers > 1:
        stages.append(AssignedWeights(program, warn))
    if trainer.prefetch_rows:
        stages.append(RowPrefetch(program))
    slow = program.config.cluster.slow_workers or {}
    if any(slow.values()):
        stages.append(SlowWorkers(slow, program.distribution.num_workers))
    return stages


class Stages:
    """Composes stages.

    Args:
      stages: in any order; of one kind, the first is the outer one. `ORDER` sorts the kinds: the first is the outermost
        for batches and steps, so that gradients reach the last one first.
    """

    def __init__(self, optimizer: Any, stages: Iterable[Stage]) -> None:
        self._optimizer = optimizer
        self._stages = sorted(stages, key=_place)

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The inputs of all stages, in the order in which a closure has them."""
        return {name: spec for stage in self._stages for name, spec in stage.inputs().items()}

    def begin(self, inputs: Inputs) -> None:
        for stage in self._stages:
            stage.begin(inputs)

    def end(self, inputs: Inputs) -> None:
        for stage in self._stages:
            stage.end(inputs)

    @property
    def carried(self) -> list[tf.Tensor]:
        """The tensors that go from one step to the next."""
        return [stage.carried for stage in self._stages if stage.carried is not None]

    @carried.setter
    def carried(self, tensors: Sequence[tf.Tensor]) -> None:
        carrying = [stage for stage in self._stages if stage.carried is not None]
        for stage, tensor in zip(carrying, tensors):
            stage.carried = tensor

    @contextlib.contextmanager
    def unrolled(self, step: Step, take: Take, num_steps: int) -> Iterator[Callable[[], Any]]:
        """Traces `num_steps` steps in this context; yields a function that trains on the next batch."""
        apply, update = self._composed("gradients"), self._composed("update")
        with contextlib.ExitStack() as stack:
            for stage in self._stages:
                stack.enter_context(stage.unrolled(num_steps))
            if update is not None:
                stack.enter_context(replaced(self._optimizer, keras.UPDATE_METHOD, update))
            if apply is not None:
                stack.enter_context(replaced(self._optimizer, "apply_gradients", apply))
            for stage in reversed(self._stages):
                take = stage.batches(take, num_steps)
                step = stage.around(step)
            yield lambda: step(take())

    def _composed(self, method: str) -> Callable[[Apply], Apply] | None:
        """A function that wraps the application of gradients in this method of every stage; None if no stage has it."""
        default = getattr(Stage, method)
        wraps = [getattr(stage, method) for stage in self._stages if getattr(type(stage), method) is not default]
        if not wraps:
            return None

        def wrapped(apply: Apply) -> Apply:
            for wrap in wraps:
                apply = wrap(apply)
            return apply

        return wrapped


def _place(stage: Stage) -> int:
    """The place of a stage in `ORDER`."""
    kind = type(stage)
    return ORDER.index(kind) if kind in ORDER else ORDER.index(Stage)


class Closure:
    """Traces closures of one kind of step.

    Args:
      feed: where the steps get their batches.
      iterator: the type of the iterator of `feed`; None if functions are traced when they are called.
      stages: what a closure does beside the step; `Replicas` is always one of them.
      step: trains on a batch; None for the network's own `train_step`, as in Keras.
    """

    def __init__(
        self, program: Program, feed: Stream, stages: Iterable[Stage], step: Step | None, iterator: Any = None
    ) -> None:
        self._program = program
        self._feed = feed
        self._stages = Stages(program.optimizer, [Replicas(program), *stages])
        count = {"num_steps": tf.TensorSpec([], tf.int32)}
        self._specs = {"iterator": iterator, **count, **feed.inputs(), **self._stages.inputs()}
        self._step = step or program.network.train_step
        self._own = program.own_step if step is None else None

    def flat(self, inputs: Inputs) -> tuple[Any, ...]:
        """The inputs of a closure in the order of its function; without `num_steps` where the function knows it."""
        return tuple(inputs[name] for name in self._specs if name in inputs)

    def _names(self, num_steps: int | None) -> list[str]:
        """The inputs of a function of so many steps, in their order; None if each call passes the number."""
        return [name for name in self._specs if num_steps is None or name != "num_steps"]

    def trace(self, unrolled: int, num_steps: int | None) -> Any:
        """A concrete `function`. Another kind of function `schedule` would trace again, and more than once."""
        specs = [self._specs[name] for name in self._names(num_steps)]
        while True:
            steps = self.function(unrolled, num_steps)
            with (
                whole_variables.naming_cut_weights(self._program.config),
                self._program.distribution.strategy.scope(),
                contextlib.suppress(CannotBeKept),  # then with fewer kept
            ):
                return steps.get_concrete_function(*specs)

    def function(self, unrolled: int = 1, num_steps: int | None = None) -> Any:
        """A function of the inputs of a closure, in the order of `flat`.

        It returns what the network's `train_step` returned in the last step, without metrics. The return value of a
        step of the user is dropped: results of a closure are sent to the chief.

        Args:
          unrolled: number of unrolled steps; a loop over them does the others.
          num_steps: number of steps; None if each call passes it, which requires `unrolled` 1.
        """
        names = self._names(num_steps)

        def steps(*values: Any) -> Any:
            with naming_assignments():
                return self._steps(dict(zip(names, values)), unrolled, num_steps)

        return steps if self._program.config.trainer.run_eagerly else unconverted(steps)

    def _steps(self, inputs: dict[str, Any], unrolled: int, num_steps: int | None) -> Any:
        count = inputs["num_steps"] if num_steps is None else num_steps
        last = int(self._own is not None)  # without values to return, one trace of the step less
        if num_steps is not None:
            last = num_steps % unrolled or unrolled
        self._feed.begin(count, inputs)
        self._stages.begin(inputs)
        if num_steps is None or num_steps > last:
            self._loop(inputs, (count - last) // unrolled, unrolled)
        outputs = self._unrolled(inputs, count - last, last) if last else None
        self._stages.end(inputs)
        return outputs

    def _loop(self, inputs: Inputs, times: tf.Tensor | int, unrolled: int) -> None:
        def body(number: tf.Tensor, *carried: tf.Tensor) -> tuple[tf.Tensor, ...]:
            self._stages.carried = carried
            self._unrolled(inputs, number * unrolled, unrolled)
            return number + 1, *self._stages.carried

        first = tf.constant(0), *self._stages.carried
        _, *carried = tf.while_loop(lambda number, *_: number < times, body, first)
        self._stages.carried = carried

    def _unrolled(self, inputs: Inputs, first: tf.Tensor | int, num_steps: int) -> Any:
        """Traces steps one after the other; returns the values of the last one.

        Args:
          first: the number of the first one in the closure.
        """
        outputs: Any = None
        take = self._feed.taker(inputs["iterator"], first, inputs)
        with self._stages.unrolled(self._step, take, num_steps) as next_step:
            for _ in range(num_steps):
                outputs = next_step()
        return None if self._own is None else self._own.plain(outputs)
