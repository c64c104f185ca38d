"""Data sources whose examples are not what they declare, and a model that looks their ids up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import ArraySource, Feature

NUM_TRAIN = 200
NUM_EVAL = 50
BAD_ROW = 37  # among the training or the evaluation examples
LAYER = "item_table"


def arrays(task: str, num_classes: int, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Right examples: numbers, ids from 0 to 9, and labels."""
    rng = np.random.default_rng(count)
    features = {
        "x": rng.uniform(size=(count, 2)).astype(np.float32),
        "item": rng.integers(10, size=(count, 1)),
    }
    if task == "multiclass":
        return features, rng.integers(num_classes, size=count)
    label = rng.integers(2, size=(count, 1)).astype(np.float32)
    return features, label


class Arrays(ArraySource):
    """Arrays with one wrong value.

    Args:
      part: train or evaluation.
      wrong: what is wrong in row `BAD_ROW` of `part`, label or the name of a feature; None: nothing.
      value: the wrong value.
      label_type: of NumPy; None: the usual one of the task.
      x_type: of NumPy, of the feature x.
    """

    def __init__(
        self,
        *,
        part: str = "train",
        wrong: str | None = None,
        value: float = 0,
        task: Any = "binary",
        num_classes: int = 1,
        nullable: bool = False,
        label_type: str | None = None,
        x_type: str = "float32",
    ) -> None:
        parts = {"train": arrays(task, num_classes, NUM_TRAIN), "evaluation": arrays(task, num_classes, NUM_EVAL)}
        features, label = parts[part]
        if wrong == "label":
            if value != int(value) if np.isfinite(value) else True:
                label = label.astype(np.float32)
            label[BAD_ROW] = value
        elif wrong is not None:
            features[wrong][BAD_ROW, 0] = value
        features["x"] = features["x"].astype(x_type)
        parts[part] = (features, label)
        if label_type is not None:
            parts = {name: (features, label.astype(label_type)) for name, (features, label) in parts.items()}
        super().__init__(features=declared(nullable), task=task, num_classes=num_classes, **parts)


class Streams:
    """The same as a class that knows nothing of arrays: it reads with tf.data alone."""

    def __init__(self, **options: Any) -> None:
        self._inner = Arrays(**options)
        self.features: Mapping[str, Feature] = self._inner.features
        self.task = self._inner.task
        self.num_classes = self._inner.num_classes
        self.num_train_examples = NUM_TRAIN
        self.num_eval_examples = NUM_EVAL
        self.facts: dict[str, Any] = {}

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices(self._inner._train)
        return rows.shuffle(NUM_TRAIN, seed=seed).repeat().batch(batch_size, drop_remainder=True)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._inner._evaluation).batch(batch_size)


def declared(nullable: bool = False) -> dict[str, Feature]:
    return {"x": Feature((2,), tf.float32, nullable=nullable), "item": Feature((1,), tf.int64)}


def model(source: Any) -> tf_keras.Model:
    """A tf_keras model with a table of 10 rows."""
    x = tf_keras.Input((2,), name="x")
    item = tf_keras.Input((1,), name="item", dtype=tf.int64)
    rows = tf_keras.layers.Flatten()(tf_keras.layers.Embedding(10, 4, name=LAYER)(item))
    joined = tf_keras.layers.Concatenate()([x, rows])
    if source.task == "multiclass":
        outputs = tf_keras.layers.Dense(source.num_classes, "softmax")(joined)
    else:
        outputs = tf_keras.layers.Dense(1, "sigmoid" if source.task == "binary" else None)(joined)
    return tf_keras.Model({"x": x, "item": item}, outputs)


def model_of_keras3(source: Any) -> Any:
    """The same of Keras 3."""
    import keras

    x = keras.Input((2,), name="x")
    item = keras.Input((1,), name="item", dtype="int64")
    rows = keras.layers.Flatten()(keras.layers.Embedding(10, 4, name=LAYER)(item))
    outputs = keras.layers.Dense(1, "sigmoid")(keras.layers.Concatenate()([x, rows]))
    return keras.Model({"x": x, "item": item}, outputs)
