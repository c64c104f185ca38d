"""The function of a closure: some steps of one kind, traced with all stages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from psrun.closures.input_streams import Stream
from psrun.closures.replicas import Replicas, naming_assignments
from psrun.closures.stage import Inputs, Stage, Step
from psrun.closures.stages import Stages
from psrun.closures.worker_local_variables import CannotBeKept
from psrun.program import whole_variables
from psrun.program.compiled_model import Program
from psrun.tf_internals.tracing import unconverted


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
          first: its number among those of the closure.
        """
        outputs: Any = None
        take = self._feed.taker(inputs["iterator"], first, inputs)
        with self._stages.unrolled(self._step, take, num_steps) as next_step:
            for _ in range(num_steps):
                outputs = next_step()
        return None if self._own is None else self._own.plain(outputs)
