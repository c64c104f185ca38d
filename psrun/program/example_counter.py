"""Counts the examples of an evaluation."""

from __future__ import annotations

import tensorflow as tf
import tf_keras


class ExamplesSeen(tf_keras.metrics.Metric):
    """Counts the examples that the metrics have processed."""

    def __init__(self, name: str = "examples_seen", dtype: tf.DType = tf.int64) -> None:
        super().__init__(name=name, dtype=dtype)
        self.count = self.add_weight(name="count", initializer="zeros", dtype=tf.int64)

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None) -> None:
        self.count.assign_add(tf.shape(tf.nest.flatten(y_true)[0], out_type=tf.int64)[0])

    def result(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.count)
