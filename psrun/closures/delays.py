"""Delays on purpose: workers that are slowed down, and gradients that come late in one process.

In the simulation, update k, from 0, applies the gradient of a batch at the weights that update k -
d left, where d is drawn; the first updates take d at most k. Dai et al.: Toward Understanding the
Impact of Staleness in Distributed Machine Learning, ICLR 2019. The weights of the last updates are
kept, as many as the longest delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Apply, Inputs, Stage, Step
from psrun.config import choices
from psrun.errors import ConfigError, Problem
from psrun.optimizers import sparse
from psrun.program.compiled_model import Program
from psrun.results.events import Histogram
from psrun.tf_internals.names import replace
from psrun.tf_internals.strategies import assigned_by
from psrun.tf_internals.tracing import operations

_CPU = "/device:CPU:0"
_TASK = "chief-0"


class SlowWorkers(Stage):
    """Adds a time to each step of some workers: between the gradients of a step and its update.

    A slow worker thus computes with weights that it read before, as one with a slow processor does.

    Args:
      seconds: added to each step, by index of the worker; the others are not slowed down.
    """

    def __init__(self, seconds: Mapping[int, float], num_workers: int) -> None:
        self._seconds = [seconds.get(worker, 0.0) for worker in range(num_workers)]
        self._delay_s: Any = None

    def begin(self, inputs: Inputs) -> None:
        # In a loop or a branch TensorFlow does not know the worker (2.21).
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        self._delay_s = tf.gather(tf.constant(self._seconds, tf.float32), worker)

    def gradients(self, apply: Apply) -> Apply:
        def apply_gradients(grads_and_vars: Iterable[tuple[Any, Any]], *arguments: Any, **options: Any) -> Any:
            gradients, variables = zip(*grads_and_vars)
            flat = tf.nest.flatten(gradients, expand_composites=True)
            with tf.control_dependencies([each for each in flat if each is not None]):
                waited = tf.cond(self._delay_s > 0, lambda: wait(self._delay_s), lambda: 0.0)
            with tf.control_dependencies([waited]):
                flat = [None if each is None else tf.identity(each) for each in flat]
            gradients = tf.nest.pack_sequence_as(gradients, flat, expand_composites=True)
            return apply(list(zip(gradients, variables)), *arguments, **options)

        return apply_gradients


def wait(seconds: tf.Tensor) -> tf.Tensor:
    """Returns 0 after that time. TensorFlow's only operation that sleeps is a dataset; here it is asked twice."""
    with tf.device(_CPU):
        ready = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(0.0))
        element: dict[str, Any] = {"output_types": [tf.float32], "output_shapes": [[]]}
        half_us = tf.cast(seconds * 5e5, tf.int64)
        late = tf.raw_ops.SleepDataset(input_dataset=ready, sleep_microseconds=half_us, **element)
        return tf.raw_ops.DatasetToSingleElement(dataset=late, **element)[0]


class SimulatedDelay:
    """Delays the gradients of a program, whichever trainer calls its network's `train_step`.

    It wraps `train_step` and `apply_gradients` as a stage does, for good: Keras' `fit` makes its own closures in one
    process. The delay of an update depends on the seed of the run and the number of the update only.
    """

    def __init__(self, program: Program, mode: choices.Simulated) -> None:
        self._optimizer = program.optimizer
        self._seed = program.config.seed
        self._cumulated = tf.cumsum(tf.constant(mode.probabilities, tf.float64)[:-1])
        self._num_versions = len(mode.probabilities)
        self._variables = list(program.network.trainable_variables)
        self._versions: list[Any] = [
            tf.Variable(tf.zeros([self._num_versions, *variable.shape], variable.dtype), trainable=False)
            for variable in self._variables
        ]
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)  # since `begin`
        self._counts = tf.Variable(tf.zeros([self._num_versions], tf.int32), trainable=False)
        self._current: list[tf.Tensor] | None = None  # weights, while the variables have earlier ones
        self._read: list[tf.Tensor] = []  # the earlier ones
        self._delay: tf.Tensor | None = None  # of the current update
        self._graph: Any = None
        self._num_before = 0  # operations before the step of the model
        replace(program.network, "train_step", self.around)
        replace(program.optimizer, "apply_gradients", self.gradients)

    def begin(self) -> None:
        """The next update takes the present weights, and those after it no older ones.

        Call when an epoch begins, as workers begin one together, and after a checkpoint, which has the present weights
        only.
        """
        self._updates.assign(0)

    def take(self) -> Mapping[str, Histogram]:
        """The delays since the last call, as a histogram of a single task."""
        counts = self._counts.numpy()
        self._counts.assign(tf.zeros_like(self._counts))
        if not counts.any():
            return {}
        return {_TASK: {int(delay): int(counts[delay]) for delay in counts.nonzero()[0]}}

    def around(self, step: Step) -> Step:
        def late_step(data: Any) -> Any:
            self._read_late()
            returned = step(data)
            if self._current is not None:
                raise _unsupported("does not apply gradients with the optimizer of the model")
            return returned

        return late_step

    def gradients(self, apply: Apply) -> Apply:
        """Gives the variables their weights back, and applies the gradients to them."""

        def apply_gradients(grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            if self._current is not None:
                self._check_assignments()
                if tf.compat.v1.get_default_graph() is not self._graph:
                    raise _unsupported("applies gradients within a branch or a loop")
                pairs = list(grads_and_vars)
                for variable, current in zip(self._variables, self._current):
                    variable.assign(current)
                grads_and_vars = self._compensated(pairs)
                self._current = None
            delay = self._delay
            self._delay = None
            with sparse.applying_late(self._optimizer, delay):
                return apply(grads_and_vars, *arguments, **options)

        return apply_gradients

    def _read_late(self) -> None:
        """Keeps the weights, and gives the variables earlier ones."""
        number = tf.cast(self._optimizer.iterations, tf.int64)
        seed = tf.stack([tf.constant(self._seed, tf.int64), number])
        drawn = tf.random.stateless_uniform([1], seed, dtype=tf.float64)
        delay = tf.searchsorted(self._cumulated, drawn, side="right", out_type=tf.int64)[0]
        updates = self._updates.read_value()
        delay = tf.minimum(delay, updates)
        self._delay = delay
        self._graph = tf.compat.v1.get_default_graph()
        self._current = []
        self._read = []
        for variable, versions in zip(self._variables, self._versions):
            current = tf.identity(variable)
            self._current.append(current)
            versions.scatter_update(tf.IndexedSlices(current[tf.newaxis], [updates % self._num_versions]))
            read = tf.gather(versions, (updates - delay) % self._num_versions)
            self._read.append(read)
            variable.assign(read)
        self._updates.assign_add(1)
        self._num_before = len(operations())
        self._counts.scatter_add(tf.IndexedSlices(tf.ones([1], tf.int32), [delay]))

    def _check_assignments(self) -> None:
        """Raises ConfigError if a layer assigned weights in the step: they get the present ones back."""
        for variable in assigned_by(operations(self._num_before), self._variables):
            message = f"'simulated' would undo what a layer assigns to {variable.name.partition(':')[0]} in each step"
            raise ConfigError([Problem("consistency", f"{message}; choose async")])

    def _compensated(self, grads_and_vars: list[Any]) -> list[Any]:
        factor = sparse.compensation_factor(self._optimizer)
        if not factor or self._current is None:
            return grads_and_vars
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        pairs = []
        for gradient, variable in grads_and_vars:
            place = places.get(id(variable))
            if place is not None and isinstance(gradient, tf.Tensor):
                gradient = sparse.compensated_gradient(gradient, self._current[place], self._read[place], factor)
            pairs.append((gradient, variable))
        return pairs


def _unsupported(what: str) -> ConfigError:
    return ConfigError([Problem("consistency", f"'simulated' does not support a train_step that {what}; choose async")])
