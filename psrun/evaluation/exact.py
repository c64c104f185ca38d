"""Evaluation on the workers in which every example counts exactly once, whatever is lost meanwhile.

The evaluation data is cut in shards. A closure runs the model over one shard and returns labels, predictions and the
sum of the loss as plain values; the coordinator, who alone keeps metrics, takes in each shard once. A closure that was
on a worker that is lost is run again elsewhere: what it had done leaves no trace. So any Keras metric will do, also one
that cannot be merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun import choices
from psrun.closures import InFlight
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
        self._meters = Meters(program)  # outside the strategy's scope: their variables are here
        # Traced now, and concrete, as `schedule` would trace again in the strategy's scope: a trace is told to all
        # workers with Python's lock held, and one that hangs or is cut off would stop every thread of this process.
        self._shard = tf.function(self._over_shard).get_concrete_function(tf.TensorSpec([], tf.int64))
        specs = self._shard.structured_outputs
        loss = tf.TensorSpec([], tf.float32)
        self._take_in = tf.function(self._meters.update).get_concrete_function(*map(_any_number, specs[:2]), loss)

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over every evaluation example, once each; `step` is what the training has reached.

        Args:
          progress: called after each shard.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        self._meters.reset()
        in_flight = InFlight(self._program.distribution, _IN_FLIGHT_PER_WORKER)
        for index in range(self._num_shards):
            for done in in_flight.add(self._coordinator.schedule(self._shard, args=(tf.constant(index, tf.int64),))):
                self._taken_in(done)
                progress()
        for done in in_flight.rest():
            self._taken_in(done)
            progress()
        return self._meters.found("exact", step)

    def _taken_in(self, done: Any) -> None:
        label, prediction, loss = done.fetch()
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
