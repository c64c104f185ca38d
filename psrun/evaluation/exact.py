"""Evaluation on the workers in which every example counts exactly once, whatever is lost meanwhile.

The evaluation data is cut in shards. A closure runs the model over one shard and leaves labels, predictions and the sum
of the loss as one value on a parameter server; the coordinator, who alone keeps metrics, takes in each shard once. A
closure that was on a worker that is lost is run again elsewhere: what it had done leaves no trace. So any Keras metric
will do, also one that cannot be merged.

The closures themselves return nothing: what one returns stays on its worker until the coordinator fetches it, and where
that worker is cut off meanwhile the fetch can stop all threads of the coordinator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun import choices
from psrun.evaluation.meters import Evaluation, Meters
from psrun.program import Program, num_eval_batches

# Enough that a worker that is done early finds work, and little is done again when one is lost.
_SHARDS_PER_WORKER = 4
_IN_FLIGHT_PER_WORKER = 2
_PARTS = 4  # of a result: number of the evaluation, labels, predictions, sum of the losses


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
        features, self._label = program.evaluation_dataset().element_spec
        measured = tf.function(self._meters.measure).get_concrete_function(features, self._label)
        self._prediction = measured.structured_outputs[0]
        with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
            self._results = tf.Variable(self._nothing())
        self._number = 0
        # Traced now: a trace is told to all workers with Python's lock held, and one that hangs would stop all.
        index = tf.TensorSpec([], tf.int64)
        self._shard = tf.function(self._over_shard, input_signature=[index, index])
        self._shard.get_concrete_function()
        self._take_in = tf.function(self._merge).get_concrete_function(tf.TensorSpec([_PARTS], tf.string))

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over every evaluation example, once each; `step` is what the training has reached.

        Args:
          progress: called after each shard.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        self._meters.reset()
        self._number += 1
        in_flight: deque[tuple[int, Any]] = deque()
        for index in range(self._num_shards):
            if len(in_flight) >= self._most:
                self._finish(*in_flight.popleft())
                progress()
            in_flight.append((index, self._schedule(index)))
        while in_flight:
            self._finish(*in_flight.popleft())
            progress()
        self._results.assign(self._nothing())
        return self._meters.found("exact", step)

    def _schedule(self, index: int) -> Any:
        arguments = (tf.constant(index, tf.int64), tf.constant(self._number, tf.int64))
        return self._coordinator.schedule(self._shard, args=arguments)

    def _finish(self, index: int, done: Any) -> None:
        """Waits for a shard and takes in what was found there."""
        while True:
            try:
                done.get()
            except tf.errors.CancelledError:
                self._coordinator.join()  # raises the error of the one that failed
                raise
            result = tf.gather(self._results, index)
            if result[0].numpy() == str(self._number).encode():
                self._take_in(result)
                return
            # A worker that was given up has come back and has just written what it found an evaluation ago.
            done = self._schedule(index)

    def _merge(self, result: tf.Tensor) -> None:
        label = tf.io.parse_tensor(result[1], self._label.dtype)
        prediction = tf.io.parse_tensor(result[2], self._prediction.dtype)
        count = tf.shape(label)[0]
        if count > 0:
            label = tf.ensure_shape(label, [None, *self._label.shape[1:]])
            prediction = tf.ensure_shape(prediction, [None, *self._prediction.shape[1:]])
            total = tf.io.parse_tensor(result[3], tf.float32)
            self._meters.update(label, prediction, total / tf.cast(count, tf.float32))

    def _over_shard(self, index: tf.Tensor, number: tf.Tensor) -> None:
        """Runs on a worker; what it leaves replaces what another worker may have left of the same shard."""
        found = map(tf.io.serialize_tensor, self._predicted(index))
        row = tf.stack([tf.strings.as_string(number), *found])
        self._results.scatter_update(tf.IndexedSlices(row[tf.newaxis], index[tf.newaxis]))

    def _predicted(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Labels, predictions and the sum of the losses of one shard."""
        labels, predictions = map(_growing, (self._label, self._prediction))
        count, total = tf.constant(0), tf.constant(0.0)
        for features, label in self._program.evaluation_dataset(shard=(index, self._num_shards)):
            predicted, loss = self._meters.measure(features, label)
            labels, predictions = labels.write(count, label), predictions.write(count, predicted)
            total += loss * tf.cast(tf.shape(label)[0], tf.float32)
            count += 1
        return labels.concat(), predictions.concat(), total

    def _nothing(self) -> tf.Tensor:
        return tf.fill([self._num_shards, _PARTS], "")


def _growing(batches: tf.TensorSpec) -> tf.TensorArray:
    """An array of batches, of which the last one may be smaller."""
    shape = [None, *batches.shape[1:]]
    return tf.TensorArray(batches.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=shape)
