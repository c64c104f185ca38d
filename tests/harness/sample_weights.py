"""Batches of (features, label, weight), models of one and of two outputs for them, and the same by Keras alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from oracles import Pattern

from psrun.data.source import ArraySource, Feature

NUM_TRAIN, NUM_EVAL = 128, 53  # the last batch of an evaluation is a small one


class Weighted(ArraySource):
    """Binary labels, or two of them by output, with weights from 0 to 4.

    The training batches come in one order, so that Keras can be given the same ones.

    Args:
      weights: of the examples to train on and to evaluate, or of one of them ('train', 'evaluation', 'both', 'none').
      outputs: 1, or 2 for labels {'click': binary, 'price': a number}.
      task: the task that the data declares.
      names: of the classes.
    """

    def __init__(
        self, *, weights: str = "both", outputs: int = 1, task: Any = "binary", names: Sequence[str] | None = None
    ) -> None:
        self.label_vocabulary = names
        rng = np.random.default_rng(7)

        def examples(part: str, count: int) -> Any:
            x = rng.normal(size=(count, 4)).astype(np.float32)
            label = (x[:, :1] + rng.normal(size=(count, 1)) > 0).astype(np.float32)
            weight = rng.integers(0, 5, size=count).astype(np.float32)
            labels = label if outputs == 1 else {"click": label, "price": 2 * x[:, 1:2] - 1}
            return ({"x": x}, labels, weight) if weights in (part, "both") else ({"x": x}, labels)

        train, evaluation = examples("train", NUM_TRAIN), examples("evaluation", NUM_EVAL)
        super().__init__(features={"x": Feature((4,), tf.float32)}, task=task, train=train, evaluation=evaluation)

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._train).batch(batch_size, drop_remainder=True).repeat()


def _layer(name: str, activation: str | None, l2: float = 0.01) -> tf_keras.layers.Layer:
    return tf_keras.layers.Dense(
        1, activation, name=name, kernel_initializer=Pattern(),
        kernel_regularizer=tf_keras.regularizers.L2(l2) if l2 else None,
    )  # fmt: skip


def one_output(activation: str | None = "sigmoid", l2: float = 0.01) -> tf_keras.Model:
    x = tf_keras.Input((4,), name="x")
    return tf_keras.Model({"x": x}, _layer("click", activation, l2)(x))


def two_outputs() -> tf_keras.Model:
    x = tf_keras.Input((4,), name="x")
    return tf_keras.Model({"x": x}, [_layer("click", "sigmoid")(x), _layer("price", None)(x)])


def by_keras(
    network: tf_keras.Model, source: Any, *, batch_size: int, epochs: int, steps: int,
    class_weight: Mapping[int, float] | None = None, optimizer: Any = None, **compiled: Any,
) -> dict[str, float]:  # fmt: skip
    """Metrics of the last epoch and of an evaluation after it, by Keras in one process."""
    network.compile(optimizer=optimizer or tf_keras.optimizers.SGD(0.1), **compiled)
    train = source.train(batch_size=batch_size, seed=tf.constant(0, tf.int64))
    history = network.fit(train, epochs=epochs, steps_per_epoch=steps, class_weight=class_weight, verbose=0).history
    evaluated = network.evaluate(source.evaluation(batch_size=batch_size), return_dict=True, verbose=0)
    last = {name: values[-1] for name, values in history.items()}
    return {**last, **{f"val_{name}": value for name, value in evaluated.items()}}


def own_data(*pieces: str, model: str = "one_output") -> Sequence[str]:
    """A run on `Weighted`, without options of the data or model that it is chosen in place of."""
    return (
        "model=dense", "~model.hidden_units", f"model._target_=sample_weights.{model}",
        "data._target_=sample_weights.Weighted", "~data.num_train_examples", "~data.num_eval_examples",
        "~data.noise", "~data.num_features",
        "data.global_batch_size=16", "optimizer=sgd", "optimizer.learning_rate=0.1", "trainer.epochs=2",
        "trainer.steps_per_epoch=8", "trainer.steps_per_execution=4", *pieces,
    )  # fmt: skip


def off_by_more(y_true: tf.Tensor, y_pred: tf.Tensor, power: float = 3.0) -> tf.Tensor:
    """A loss, and a metric, of one's own."""
    return tf.reduce_mean(tf.abs(y_true - y_pred) ** power, axis=-1)
