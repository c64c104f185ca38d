"""Models and data as people write them beside psrun."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.datasets import HeroFeatures
from psrun.data.source import ArraySource, ByNumber, Feature
from psrun.models.model import Model, dense, embedding


def heroes(source: HeroFeatures, *, last: str | None = None, loss_logits: bool | None = None) -> Model:
    """The model of the tutorial, with the given activation of its last layer, and optionally its own loss."""
    base = embedding(source, embedding_dim=4)
    (before,) = [layer for layer in base.network.layers if isinstance(layer, tf_keras.layers.GlobalAveragePooling1D)]
    outputs = tf_keras.layers.Dense(1, activation=last, name="prediction")(before.output)
    loss = None if loss_logits is None else tf_keras.losses.BinaryCrossentropy(from_logits=loss_logits)
    return Model(tf_keras.Model(base.network.inputs, outputs), base.preprocessing, loss)


class Shifted(ArraySource):
    """Numbers in [0, 1) to train on; those to evaluate on are greater by `shift`."""

    def __init__(self, *, shift: float = 0.0) -> None:
        x = np.linspace(0, 1, 64, endpoint=False, dtype=np.float32)[:, np.newaxis]
        label = (x > 0.5).astype(np.float32)
        super().__init__(
            features={"x": Feature((1,), tf.float32)}, task="binary", train=({"x": x}, label),
            evaluation=({"x": x + shift}, label),
        )  # fmt: skip


def uncut(source, *, kind: str) -> tf_keras.Model:
    """A layer that cannot use the shards of its weights."""
    x = tf_keras.Input((10,), name="x")
    if kind == "half":
        return tf_keras.Model(x, tf_keras.layers.Dense(4, dtype="mixed_bfloat16")(x))
    if kind == "keras3_tf_idf":
        import keras

        keras.layers.StringLookup(output_mode="tf_idf").adapt(np.array([["a", "b"], ["b", "c"]]))
    return tf_keras.Model(x, tf_keras.layers.LSTM(4)(tf_keras.layers.Reshape((10, 1))(x)))


def weighted(source: Shifted, *, weight: float = 1.0, bias: float = 0.0) -> tf_keras.Model:
    """A linear layer that begins as weight * x + bias."""
    x = tf_keras.Input((1,), name="x")
    constant = tf_keras.initializers.Constant
    return tf_keras.Model(
        {"x": x}, tf_keras.layers.Dense(1, kernel_initializer=constant(weight), bias_initializer=constant(bias))(x)
    )


class Steps(tf_keras.Model):
    """A step in the style of a loop by hand: its own loss, its own metric, and the number of the step.

    Attributes:
      nan_at: the step, from 1, whose loss is returned as NaN; 0 for none.
      options: of `apply_gradients`.
    """

    nan_at = 0
    options: dict[str, bool] = {}

    def train_step(self, data):
        features, label = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(features, training=True) - label))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables), **self.options)
        self.counted.update_state(1.0)
        at = tf.cast(self.optimizer.iterations, tf.float32)
        loss = tf.where(at == float(self.nan_at), float("nan"), loss)
        return {"loss": loss, "at": at, "counted": self.counted.result()}


def steps(source, *, nan_at: int = 0, aggregates: bool = True) -> tf_keras.Model:
    base = dense(source, hidden_units=(4,)).network
    network = Steps(base.inputs, base.outputs)
    network.options = {} if aggregates else {"skip_gradients_aggregation": True}
    network.nan_at, network.counted = nan_at, tf_keras.metrics.Sum(name="counted")
    return network


class Guide(tf_keras.Model):
    """A step as Keras' guide has it, with compiled metrics, or with plain values of the names of all metrics."""

    plain, with_loss = False, True

    def train_step(self, data):
        features, label = data
        with tf.GradientTape() as tape:
            prediction = self(features, training=True)
            loss = (
                self.compiled_loss(label, prediction) if self.with_loss else tf.reduce_mean((label - prediction) ** 2)
            )
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        if self.plain:
            return {"loss": loss, "mae": tf.constant(7.0)}
        self.compiled_metrics.update_state(label, prediction)
        return {metric.name: metric.result() for metric in self.metrics}


def guide(source, *, plain: bool = False, with_loss: bool = True) -> tf_keras.Model:
    base = dense(source, hidden_units=(4,)).network
    network = Guide(base.inputs, base.outputs)
    network.plain, network.with_loss = plain, with_loss
    return network


class Wrong(tf_keras.Model):
    """A step that returns one loss an example."""

    def train_step(self, data):
        return {"loss": tf.zeros([8])}


def wrong(source) -> tf_keras.Model:
    base = dense(source, hidden_units=(4,)).network
    return Wrong(base.inputs, base.outputs)


def sequential(source, *, sized: bool = False) -> tf_keras.Model:
    """Layers in a row, with or without the shape of their input."""
    return tf_keras.Sequential(
        [*([tf_keras.Input((10,))] if sized else []), tf_keras.layers.Dense(4), tf_keras.layers.Dense(1)]
    )


class Two(Shifted):
    """Another feature beside."""

    def __init__(self) -> None:
        super().__init__()
        self.features = {"x": Feature((1,), tf.float32), "y": Feature((1,), tf.float32)}


class NoDataset(Shifted):
    """Batches as arrays."""

    def __init__(self, *, evaluation: bool = False) -> None:
        super().__init__()
        self._evaluation_only = evaluation

    def train(self, *, batch_size, seed):
        return super().train(batch_size=batch_size, seed=seed) if self._evaluation_only else [np.zeros((16, 1))]

    def evaluation(self, *, batch_size, shard=None):
        return None


class NoRead(ByNumber):
    """A source by number that does not define how examples are read."""


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.range(3)


def bounded(source, *, kind: str) -> tf_keras.Model:
    """Weights of which the norms of columns or of rows are bounded, or which are to become orthogonal."""
    x = tf_keras.Input((10,), name="x")
    options = {
        "columns": {"kernel_constraint": tf_keras.constraints.MaxNorm(0.1, axis=0)},
        "rows": {"kernel_constraint": tf_keras.constraints.MaxNorm(0.1, axis=1)},
        "orthogonal": {"kernel_regularizer": tf_keras.regularizers.OrthogonalRegularizer()},
    }[kind]
    dense = tf_keras.layers.Dense(4, name="bounded", **options)
    return tf_keras.Model(x, tf_keras.layers.Dense(1)(dense(x)))
