"""Optimizers as people write them, and functions that return one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from psrun.optimizers.sparse import SparseAdagrad


class Lamb(tf_keras.optimizers.SGD):
    """The length of a step depends on the norm of the whole variable."""

    def update_step(self, gradient: Any, variable: Any) -> None:
        gradient = tf.convert_to_tensor(gradient)
        trust = tf.norm(variable) / (tf.norm(gradient) + 1e-6)
        variable.assign_sub(self.learning_rate * trust * gradient)


class ByRow(tf_keras.optimizers.Adam):
    """Steps by row."""


class Noisy(tf_keras.optimizers.SGD):
    def update_step(self, gradient: Any, variable: Any) -> None:
        super().update_step(tf.convert_to_tensor(gradient) + tf.random.normal(variable.shape), variable)


class Choosy(tf_keras.optimizers.SGD):
    def build(self, var_list: Any) -> None:
        if not any("prediction" in variable.name for variable in var_list):
            raise KeyError("prediction")
        super().build(var_list)


def with_averages(learning_rate: float) -> Any:
    return tf_keras.optimizers.Adam(learning_rate, use_ema=True)


class Legacy(tf_keras.optimizers.legacy.Nadam):
    """Extends a legacy optimizer."""


def scaled_legacy(learning_rate: float) -> Any:
    return tf_keras.mixed_precision.LossScaleOptimizer(Legacy(learning_rate))


def scaled(learning_rate: float) -> Any:
    return tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Adam(learning_rate))


def clipping(learning_rate: float) -> Any:
    return tf_keras.optimizers.Adam(learning_rate, clipnorm=1.0)


class Centered(tf_keras.optimizers.SGD):
    """Changes the gradients of all variables."""

    def apply_gradients(self, grads_and_vars: Any, **options: Any) -> Any:
        return super().apply_gradients([(each - tf.reduce_mean(each), of) for each, of in grads_and_vars], **options)


def nothing(learning_rate: float) -> None:
    """A function that forgot to return its optimizer."""


def scaled_nadam() -> Any:
    return tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Nadam())


def network(source: Any, *, kind: str) -> Any:
    """A model with a second optimizer."""
    made = {"Adafactor": tf_keras.optimizers.Adafactor, "Averaged": lambda: with_averages(0.1), "Legacy": Legacy}
    model = tf_keras.Sequential([tf_keras.Input((10,)), tf_keras.layers.Dense(4, name="dense")])
    model.add(tf_keras.layers.Dense(1, name="prediction"))
    model.second = made[kind]()
    return model


class Fading(SparseAdagrad):
    """Has a rule of its own for stale updates."""

    def late_rate(self, rate: Any, staleness: Any) -> Any:
        return rate * 0.5 ** (staleness / 4)


class FailsLate(SparseAdagrad):
    def late_rate(self, rate: Any, staleness: Any) -> Any:
        raise TypeError("no such rule")


def cut_tables(shape: tf.TensorShape, dtype: tf.DType) -> list[int]:
    """A partitioner that cuts in two what has more than one column."""
    return [2 if len(shape) == 2 and shape[1] > 1 else 1, *[1] * (len(shape) - 1)]
