"""Data and models of which it is known where the time of a step goes."""

from __future__ import annotations

import tensorflow as tf
import tf_keras

from psrun import layers
from psrun.data.datasets import Regression


def busy(value: tf.Tensor, rounds: int = 40) -> tf.Tensor:
    """The value, many milliseconds later."""
    square = tf.reduce_sum(value) * tf.ones([400, 400])
    _, done = tf.while_loop(
        lambda number, _: number < rounds, lambda number, m: (number + 1, tf.matmul(m, m) * 0.001), (0, square * 0)
    )
    return value + tf.reduce_sum(done)


class Slow(Regression):
    """Batches that take time."""

    def read(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        return super().read(batches).map(lambda number, numbers, examples: (number, numbers, _slowly(examples)))


def _slowly(examples: tuple) -> tuple:
    features, label = examples
    # Batches are read ahead while the chief schedules: longer than that takes on a busy machine.
    return {name: busy(value, rounds=250) for name, value in features.items()}, label


def quick(source: Regression) -> tf_keras.Model:
    x = tf_keras.Input([10], name="x")
    return tf_keras.Model(x, tf_keras.layers.Dense(1)(x))


class Busy(tf_keras.layers.Layer):
    def call(self, value: tf.Tensor) -> tf.Tensor:
        return busy(value)


def slow(source: Regression) -> tf_keras.Model:
    """Computes for long on what it has read."""
    x = tf_keras.Input([10], name="x")
    return tf_keras.Model(x, tf_keras.layers.Dense(1)(Busy()(tf_keras.layers.Dense(4)(x))))


class Called(tf_keras.layers.Layer):
    """Computes for long in a function that a branch calls."""

    def build(self, shape: tf.TensorShape) -> None:
        self.kernel = self.add_weight(name="kernel", shape=[10, 1])

    def call(self, value: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.shape(value)[0] > 1, lambda: self._slowly(value), lambda: value[:, :1])

    @tf.function
    def _slowly(self, value: tf.Tensor) -> tf.Tensor:
        return busy(tf.matmul(value, self.kernel))


def slow_branch(source: Regression) -> tf_keras.Model:
    x = tf_keras.Input([10], name="x")
    return tf_keras.Model(x, Called()(x))


def slow_rows(source: Regression) -> tf_keras.Model:
    """Computes for long on rows of a table, whose gradients take a way of their own."""
    x = tf_keras.Input([10], name="x")
    ids = tf.cast(tf.math.abs(x) * 10, tf.int64) % 50
    averaged = tf_keras.layers.GlobalAveragePooling1D()(layers.Embedding(50, 4)(ids))
    return tf_keras.Model(x, tf_keras.layers.Dense(1)(Busy()(averaged)))


class OfOneFunction(tf_keras.Model):
    @tf.function
    def train_step(self, data: tuple) -> dict[str, tf.Tensor]:
        return super().train_step(data)


def slow_step(source: Regression) -> tf_keras.Model:
    plain = slow(source)
    return OfOneFunction(plain.inputs, plain.outputs)


class LateFirst(Regression):
    """The first batch takes longer than many steps."""

    def read(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        return super().read(batches).map(_first_late)


def _first_late(number: tf.Tensor, numbers: tf.Tensor, examples: tuple) -> tuple:
    waited = tf.cond(number == 0, lambda: busy(busy(busy(busy(tf.zeros([]))))), lambda: tf.zeros([]))
    features, label = examples
    return number, numbers, ({name: value + waited * 0 for name, value in features.items()}, label)


def wide(source: Regression) -> tf_keras.Model:
    """80 MB of weights that nearly nothing is computed with."""
    x = tf_keras.Input([10], name="x")
    return tf_keras.Model(x, Pick()(x))


class Pick(tf_keras.layers.Layer):
    def build(self, shape: tf.TensorShape) -> None:
        self.kernel = self.add_weight(name="kernel", shape=[20_000_000])

    def call(self, value: tf.Tensor) -> tf.Tensor:
        return value[:, :1] * tf.reduce_mean(self.kernel)
