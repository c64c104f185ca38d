"""Workers that are slowed down on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Apply, Inputs, Stage

_CPU = "/device:CPU:0"


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
