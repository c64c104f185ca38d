"""Tables that count: minus each row is how often the updates of its example were applied, by an oracle without bounds.

The model adds up a row of each of two tables of zeros, one row per example, and its output is the loss. With SGD and a
learning rate equal to the batch size, each use of a row subtracts 1, and each step that much of a dense variable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import ArraySource, Feature
from psrun.layers import Embedding

TABLES = ("a", "b")


class Numbered(ArraySource):
    """Examples with their number as id, for each table."""

    def __init__(self, *, examples: int) -> None:
        ids = np.arange(examples)
        label = np.zeros((examples, 1), np.float32)
        part = {name: ids for name in TABLES}, label
        features = {name: Feature((), tf.int64) for name in TABLES}
        super().__init__(features=features, task="regression", train=part, evaluation=part)


class Steps(tf_keras.layers.Layer):
    """Adds a variable of one number."""

    def build(self, shape: Any) -> None:
        self.steps = self.add_weight("steps", (1,), initializer="zeros")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs + self.steps


def model(source: Numbered) -> tf_keras.Model:
    inputs = {name: tf_keras.Input((), dtype=tf.int64, name=name) for name in TABLES}
    num_ids = source.num_train_examples
    rows = [
        Embedding(num_ids, 1, embeddings_initializer="zeros", name=f"table_{name}")(inputs[name]) for name in TABLES
    ]
    return tf_keras.Model(inputs, Steps()(tf_keras.layers.Add()(rows)))


def value(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.reshape(y_pred, [-1])


def arguments(*pieces: str, examples: int, batch: int) -> list[str]:
    """The arguments of a run that passes over all examples in each epoch."""
    return [
        "model=dense", "~model.hidden_units", "model._target_=counting.model", "model.loss={_target_: counting.value}",
        "model.metrics=[]", "data._target_=counting.Numbered", "~data.num_train_examples", "~data.num_eval_examples",
        "~data.noise", "~data.num_features", f"+data.examples={examples}", f"data.global_batch_size={batch}",
        "data.visitation=once", "data.audit=true", "optimizer=sparse_sgd", f"optimizer.learning_rate={batch}",
        "partitioner=fixed_shards", "evaluation=none", "tracker=none", "trainer.steps_per_epoch=null", *pieces,
    ]  # fmt: skip


def wrong(checkpoints: Path, expected: float, *, updates: float, batch: int) -> dict[str, dict[float, int]]:
    """How many rows of each variable in the newest checkpoint have another count than the expected one.

    Args:
      expected: of each example.
      updates: expected number of updates of a dense variable.
    """
    reader: Any = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(checkpoints)))
    found = {}
    for name in reader.get_variable_to_shape_map():
        *_, variable = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        if variable in ("embeddings", "steps"):
            value = -reader.get_tensor(name).ravel()
            count, right = (value, expected) if variable == "embeddings" else (value / batch, updates)
            found[name] = dict(zip(*(each.tolist() for each in np.unique(count[count != right], return_counts=True))))
    assert len(found) == len(TABLES) + 1, found
    return {name: counts for name, counts in found.items() if counts}
