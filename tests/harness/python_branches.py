"""Components whose functions branch and loop on tensors in Python, as a `tf.function` allows (AutoGraph)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import Batches, ByNumber, Feature, shard_of
from psrun.models.model import Model


def _halved(values: tf.Tensor) -> tf.Tensor:
    """Halves values until their sum is at most 1."""
    while tf.reduce_sum(tf.abs(values)) > 1.0:
        values = values / 2
    return values


class Source(ByNumber):
    """Reads training examples by number."""

    features: Mapping[str, Feature] = {"x": Feature((1,), tf.float32)}
    task, num_classes, facts = "regression", 1, {}
    num_train_examples = num_eval_examples = 64

    def read(self, batches: Batches) -> Batches:
        return batches.map(lambda number, numbers: (number, numbers, _examples(numbers, number)))

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(self.num_eval_examples).batch(batch_size)
        return numbers.map(lambda numbers: _examples(numbers, numbers[0]))


class Stream(Source):
    """Has a stream of training examples instead."""

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(self.num_train_examples).batch(batch_size, drop_remainder=True).repeat()
        return numbers.map(lambda numbers: _examples(numbers, numbers[0] + seed))


class Branching(Source):
    """Its methods branch, too; `Dataset.map` gets functions by name, as TensorFlow requires it then."""

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        first = seed * 0
        if seed % 2 == 0:
            first += 1
        numbers = tf.data.Dataset.range(first, self.num_train_examples).batch(batch_size, drop_remainder=True).repeat()
        return numbers.map(_batch)

    def evaluation(self, *, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        num_batches = -(-self.num_eval_examples // batch_size)
        first, last = (0, num_batches) if shard is None else shard_of(num_batches, shard)
        if last > num_batches:
            last = first
        numbers = tf.data.Dataset.range(first * batch_size, last * batch_size).batch(batch_size)
        return numbers.map(_batch)


def _batch(numbers: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    return _examples(numbers, numbers[0])


def _examples(numbers: tf.Tensor, number: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """The label is twice the feature; every other batch has them negated."""
    x = tf.cast(numbers[:, tf.newaxis], tf.float32) / 32 - 1
    if number % 2 == 0:
        x = -x
    return {"x": x}, 2 * x


class _Layer(tf_keras.layers.Layer):
    def call(self, values: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(values) > 0:
            return values * 1.0
        return values


class _Network(tf_keras.Model):
    """Has a `train_step` that clips large gradients."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> tf.Tensor:
        return tf.reduce_mean(_loss(y, y_pred))

    def train_step(self, data: Any) -> dict[str, Any]:
        features, label = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(features, label, self(features, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        factor = tf.constant(1.0)
        if loss > 1.0:
            factor = factor / 2
        pairs = [(gradient * factor, variable) for gradient, variable in zip(gradients, self.trainable_variables)]
        self.optimizer.apply_gradients(pairs)
        return {"loss": loss, "factor": factor}


class _Error(tf_keras.metrics.Mean):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        error = tf.reduce_mean(tf.abs(y_true - y_pred))
        if error > 1e6:
            error = error * 0
        return super().update_state(error)


def _loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    loss = tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)
    if tf.reduce_max(loss) > 1e6:
        loss = tf.minimum(loss, 1e6)
    return loss


def _preprocessing(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {"x": features["x"] + tf.reduce_sum(_halved(features["x"])) * 0}


def model(source: Source, *, own_step: bool = False) -> Model:
    x = tf_keras.Input((1,), name="x")
    kind = _Network if own_step else tf_keras.Model
    network = kind({"x": x}, tf_keras.layers.Dense(1)(_Layer()(x)))
    return Model(network, _preprocessing, _loss, lambda: [_Error(name="error")])


def loop(program: Any, session: Any) -> None:
    """Schedules a step that bounds the labels."""
    network = program.network

    def step(batch: Any) -> None:
        features, label = batch
        if tf.reduce_max(label) > 1e6:
            label = tf.minimum(label, 1e6)
        network.train_step((features, label))

    for _ in session.epochs():
        while session.steps_left:
            session.schedule(step)
