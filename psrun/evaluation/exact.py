"""Evaluation on the workers in which every example counts exactly once, whatever is lost meanwhile.

The evaluation data is cut in shards. A closure runs the model over one shard and returns labels, predictions and the
sum of the loss as plain values; the coordinator, who alone keeps metrics, takes in each shard once. A closure that was
on a worker that is lost is run again elsewhere: what it had done leaves no trace. So any Keras metric will do, also one
that cannot be merged.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import tensorflow as tf

from psrun import choices
from psrun.evaluation.meters import Evaluation, Meters
from psrun.program import Program, num_eval_batches

# Enough that a worker that is done early finds work, and little is done again when one is lost.
_SHARDS_PER_WORKER = 4
_IN_FLIGHT_PER_WORKER = 2


class ExactEvaluation:
    """Evaluates a program on its workers, between epochs, when no step runs."""

    def __init__(self, program: Program) -> None:
        distribution, config = program.distribution, program.config
        assert distribution.coordinator is not None
        assert isinstance(config.evaluation, choices.Exact)
        self._program, self._coordinator = program, distribution.coordinator
        wanted = config.evaluation.num_shards or _SHARDS_PER_WORKER * distribution.num_workers
        self._num_shards = max(1, min(num_eval_batches(config, program.source), wanted))
        self._most = _IN_FLIGHT_PER_WORKER * distribution.num_workers
        self._meters = Meters(program)  # outside the strategy's scope: their variables are here
        # Traced now: a trace is told to all workers with Python's lock held, and one that hangs would stop all.
        self._shard = tf.function(self._over_shard, input_signature=[tf.TensorSpec([], tf.int64)])
        specs = self._shard.get_concrete_function().structured_outputs
        loss = tf.TensorSpec([], tf.float32)
        self._take_in = tf.function(self._meters.update).get_concrete_function(*map(_any_number, specs[:2]), loss)

    def evaluate(self, step: int) -> Evaluation:
        """Metrics over every evaluation example, once each; `step` is what the training has reached.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        self._meters.reset()
        in_flight: deque[Any] = deque()
        for index in range(self._num_shards):
            if len(in_flight) >= self._most:
                self._taken_in(in_flight.popleft())
            in_flight.append(self._coordinator.schedule(self._shard, args=(tf.constant(index, tf.int64),)))
        while in_flight:
            self._taken_in(in_flight.popleft())
        return self._meters.found("exact", step)

    def _taken_in(self, result: Any) -> None:
        try:
            label, prediction, loss = result.fetch()
        except (tf.errors.CancelledError, tf.errors.UnavailableError):
            # Another one failed, which the join tells; or the worker was lost while the result was on its way: then
            # the shard is run again, and has been once the join returns.
            self._coordinator.join()
            label, prediction, loss = result.fetch()
        if len(label):
            self._take_in(tf.constant(label), tf.constant(prediction), tf.constant(loss / len(label)))

    def _over_shard(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Labels, predictions and the sum of the losses of one shard; runs on a worker."""
        dataset = self._program.evaluation_dataset(shard=(index, self._num_shards))
        features, label = dataset.element_spec
        made = tf.function(self._meters.measure).get_concrete_function(features, label).structured_outputs[0]
        labels = tf.TensorArray(label.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=label.shape)
        predictions = tf.TensorArray(
            made.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, *made.shape[1:]]
        )
        count, total = tf.constant(0), tf.constant(0.0)
        for batch_features, batch_label in dataset:
            predicted, loss = self._meters.measure(batch_features, batch_label)
            labels, predictions = labels.write(count, batch_label), predictions.write(count, predicted)
            total += loss * tf.cast(tf.shape(batch_label)[0], tf.float32)
            count += 1
        return labels.concat(), predictions.concat(), total


def _any_number(examples: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *examples.shape[1:]], examples.dtype)
