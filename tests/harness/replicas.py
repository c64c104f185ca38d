"""Models whose steps show whether replicas see each example once."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras
from embeddings import DIM, IDS, ROWS, Ids

from psrun import layers
from psrun.models.model import Model


class Assigning(tf_keras.metrics.Metric):
    """Counts examples by assigning."""

    def __init__(self, name: str = "assigned", **options: Any) -> None:
        super().__init__(name, **options)
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        self.count.assign(self.count + tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self) -> tf.Tensor:
        return self.count


def linear(
    source: Ids,
    *,
    keras: bool = False,
    regularizer: str | None = "l2",
    reduction: str = "auto",
    network: Any = tf_keras.Model,
) -> Model:
    """The mean over rows and ids, through a regularised dense layer."""
    ids = tf_keras.Input((IDS,), dtype=tf.int64, name="ids")
    rows = (tf_keras.layers if keras else layers).Embedding(ROWS, DIM)(ids)
    averaged = tf_keras.layers.GlobalAveragePooling1D()(rows)
    prediction = tf_keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=regularizer)(averaged)

    def metrics() -> list[tf_keras.metrics.Metric]:
        return [tf_keras.metrics.MeanAbsoluteError(name="mae"), Assigning()]

    return Model(network({"ids": ids}, prediction), loss=tf_keras.losses.MeanSquaredError(reduction), metrics=metrics)


class OwnTrainStep(tf_keras.Model):
    """The step of the RFC of parameter server training, with its own loss."""

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        features, label = data
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(self(features, training=True) - label), axis=-1)
            loss = tf.nn.compute_average_loss(errors)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss}


def own_step(source: Ids) -> Model:
    return linear(source, network=OwnTrainStep)
