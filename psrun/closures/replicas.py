"""Several copies of a step at once: replicas of a worker, and weights that layers assign, where
copies overwrite them.

For workers with several GPUs, each replica trains on a part of the worker's batch. `Strategy.run`
of parameter server training passes the same arguments to every replica. Here a batch is split
first. Keras and TensorFlow scale means over parts as if all parts had the same size; here they are
weighted by their sizes, so that the sum over replicas is the result of one device for the whole
batch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.closures.stage import Apply, Stage, Step
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.tf_internals import messages
from psrun.tf_internals.coordinator import being_scheduled
from psrun.tf_internals.names import split_name
from psrun.tf_internals.strategies import assigned_by
from psrun.tf_internals.tracing import operations

_CPU = "/device:CPU:0"  # the device of a worker's input pipeline
_Reduction = tf_keras.losses.Reduction


@contextlib.contextmanager
def naming_assignments() -> Iterator[None]:
    """Names the reason where layers assign to a weight on several replicas; TensorFlow's text is about its own API."""
    try:
        yield
    except ValueError as error:
        if not messages.assigns_on_replicas(error):
            raise
        message = (
            "a layer assigns to a weight when it is called, which several replicas cannot do on one variable; use one "
            "replica (cluster.replicas_per_worker=1, or cluster=none), or cluster=mirrored"
        )
        raise ConfigError([Problem("model", message)]) from error


class Replicas(Stage):
    """Runs a step on the replicas of a worker.

    A batch has examples along the first axis of each tensor: replicas get consecutive examples, the numbers of which
    differ by one at most, and values that they return are summed. In a strategy that has no workers of a coordinator, a
    batch is one that the strategy has distributed.

    Raises:
      ConfigError: some losses are means and others sums: no weight of a part suits both.
    """

    def __init__(self, program: Program) -> None:
        self._strategy = program.distribution.strategy
        self._num_replicas = self._strategy.num_replicas_in_sync
        self._splits = program.distribution.coordinator is not None and self._num_replicas > 1
        self._weights: list[tf.Tensor] | None = None  # of the parts of the batch; None: equal weights
        if self._splits:
            self._averages = _averages(program.network.loss)

    def around(self, step: Step) -> Step:
        def on_replicas(batch: Any) -> Any:
            parts = self._parts(batch) if self._splits else batch
            with being_scheduled(self._strategy):
                outputs = self._strategy.run(step, args=(parts,))
            return tf.nest.map_structure(self._sum, outputs)

        return on_replicas

    def gradients(self, apply: Apply) -> Apply:
        """Weights the gradients of each part, where parts differ in size."""

        def apply_gradients(grads_and_vars: Iterable[tuple[Any, Any]], *arguments: Any, **options: Any) -> Any:
            context = tf.distribute.get_replica_context()
            if context is not None and self._weights is not None:
                weight = tf.gather(tf.stack(self._weights), context.replica_id_in_sync_group)
                grads_and_vars = [(_times(gradient, weight), variable) for gradient, variable in grads_and_vars]
            return apply(grads_and_vars, *arguments, **options)

        return apply_gradients

    def _parts(self, batch: Any) -> Any:
        with tf.device(_CPU):
            size = _num_examples(batch)
            bounds = [size * number // self._num_replicas for number in range(self._num_replicas + 1)]
            pairs = list(itertools.pairwise(bounds))
            even = isinstance(size, int) and size % self._num_replicas == 0
            self._weights = None
            if self._averages and not even:
                whole = tf.cast(tf.maximum(size, 1), tf.float32)
                self._weights = []
                for begin, end in pairs:
                    part = tf.cast((end - begin) * self._num_replicas, tf.float32)
                    self._weights.append(part / whole)
            parts = []
            for begin, end in pairs:
                rows = functools.partial(_rows, begin=begin, end=end)
                parts.append(tf.nest.map_structure(rows, batch))
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )

    def _sum(self, value: Any) -> Any:
        """Reduces values of replicas as Keras does; treats floats as means over the part, like the loss."""
        if not isinstance(value, tf.distribute.DistributedValues):
            return value
        values = self._strategy.experimental_local_results(value)
        if self._weights is not None and values[0].dtype.is_floating:
            values = [_times(each, weight) for each, weight in zip(values, self._weights)]
        return tf.add_n(values)


def _averages(losses: Any) -> bool:
    """Whether losses are means over examples; Keras' other reductions are sums."""
    reductions = {getattr(loss, "reduction", _Reduction.AUTO) for loss in tf.nest.flatten(losses)}
    sums = reductions & {_Reduction.SUM, _Reduction.NONE}
    if sums and sums != reductions:
        message = "mixes losses with mean and sum reductions; with several replicas use one reduction for all losses"
        raise ConfigError([Problem("model", message)])
    return not sums


def _num_examples(batch: Any) -> Any:
    """An int if the shape is static, else a tensor."""
    value = next(value for value in tf.nest.flatten(batch) if value.shape.rank != 0)
    if value.shape[0] is not None:
        return value.shape[0]
    if isinstance(value, tf.RaggedTensor):
        return value.nrows()
    return tf.shape(value)[0]


def _rows(value: Any, begin: Any, end: Any) -> Any:
    """The examples of a part."""
    return value[begin:end] if value.shape.rank else value


def _times(gradient: Any, weight: tf.Tensor) -> Any:
    """The mean of an empty part may not be finite; its weight is 0."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_times(gradient.values, weight), gradient.indices, gradient.dense_shape)
    return tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype))


class AssignedWeights(Stage):
    """Looks for assignments in the forward pass: an assigned value is without what other workers did since it was read.

    Args:
      warn: called with the names of variables, once for each.
    """

    def __init__(self, program: Program, warn: Callable[[str], None]) -> None:
        self._variables = list(program.network.trainable_variables)
        self._warn = warn
        self._named: set[str] = set()
        self._num_before = 0

    def around(self, step: Step) -> Step:
        def counted(batch: Any) -> Any:
            self._num_before = len(operations())
            return step(batch)

        return counted

    def gradients(self, apply: Apply) -> Apply:
        def after_forward_pass(*arguments: Any, **options: Any) -> Any:
            assigned = assigned_by(operations(self._num_before), self._variables)
            self._report({split_name(variable.name)[0] for variable in assigned})
            return apply(*arguments, **options)

        return after_forward_pass

    def _report(self, names: set[str]) -> None:
        new = sorted(names - self._named)
        if not new:
            return
        self._named.update(new)
        self._warn(
            f"layers assign {', '.join(new)} in each step: what other workers change between the reading of a weight "
            "and its assignment is lost, and the numbers differ from a run with one worker; to avoid that, set "
            "cluster.num_workers=1"
        )
