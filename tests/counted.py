"""Data whose labels are the examples' own numbers, and a model whose metrics count how often each was seen."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import ArraySource, Feature
from psrun.models import dense as plain
from psrun.models.model import Model


class Numbered(ArraySource):
    """Examples 0, 1, 2, ...: the label is the number, the feature a hundredth of it."""

    def __init__(self, *, num_eval_examples: int = 100) -> None:
        def examples(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            numbers = np.arange(count, dtype=np.float32)[:, np.newaxis]
            return {"x": numbers / 100}, numbers

        super().__init__(
            features={"x": Feature((1,), tf.float32)}, task="regression", train=examples(200),
            evaluation=examples(num_eval_examples),
        )  # fmt: skip


class AsOthersHaveIt:
    """The same data from a class that knows nothing of shards."""

    def __init__(self, *, num_eval_examples: int = 100, endless: bool = False, wide: bool = False) -> None:
        self._inner, self._endless, self._wide = Numbered(num_eval_examples=num_eval_examples), endless, wide
        self.features, self.task, self.num_classes, self.facts = self._inner.features, "regression", 1, {}
        self.num_train_examples, self.num_eval_examples = 200, num_eval_examples

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return self._inner.train(batch_size=batch_size, seed=seed)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        batches = self._inner.evaluation(batch_size=batch_size)
        if self._wide:
            batches = batches.map(lambda features, label: ({"x": tf.tile(features["x"], [1, 2])}, label))
        return batches.repeat() if self._endless else batches


class NotOnce(tf_keras.metrics.Metric):
    """How many of the examples were not seen exactly once."""

    def __init__(self, count: int, name: str = "not_once") -> None:
        super().__init__(name=name)
        self.seen = self.add_weight(name="seen", shape=(count,), initializer="zeros", dtype=tf.int32)

    def update_state(self, y_true, y_pred, sample_weight=None):
        count = self.seen.shape[0]
        numbers = tf.cast(tf.reshape(y_true, [-1]), tf.int32) % count
        self.seen.assign_add(tf.math.bincount(numbers, minlength=count, maxlength=count))

    def reset_state(self):
        self.seen.assign(tf.zeros_like(self.seen))

    def result(self):
        return tf.reduce_sum(tf.cast(self.seen != 1, tf.float32))


def model(source: Numbered) -> Model:
    """A perceptron; R2 is a metric that cannot be merged by adding."""
    network = plain.dense(source, hidden_units=(4,)).network

    def metrics() -> list[tf_keras.metrics.Metric]:
        return [NotOnce(source.num_eval_examples), tf_keras.metrics.MeanAbsoluteError(), tf_keras.metrics.R2Score()]

    return Model(network, metrics=metrics)


def scheduled(rate: float = 0.1) -> tf_keras.optimizers.Optimizer:
    """An optimizer whose learning rate no configuration shows to be a schedule."""
    return tf_keras.optimizers.SGD(tf_keras.optimizers.schedules.CosineDecay(rate, 10))
