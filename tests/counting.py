"""Tables that count: minus each row is how often the updates of its example were applied, by an oracle without bounds.

The model adds up a row of each of two tables of zeros, one row per example, and its output is the loss. With SGD and a
learning rate equal to the batch size, each use of a row subtracts 1.
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


def model(source: Numbered) -> tf_keras.Model:
    inputs = {name: tf_keras.Input((), dtype=tf.int64, name=name) for name in TABLES}
    num_ids = source.num_train_examples
    rows = [
        Embedding(num_ids, 1, embeddings_initializer="zeros", name=f"table_{name}")(inputs[name]) for name in TABLES
    ]
    return tf_keras.Model(inputs, tf_keras.layers.Add()(rows))


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


def counts(checkpoints: Path) -> dict[str, np.ndarray]:
    """How often each example was applied, by table, in the newest checkpoint."""
    reader: Any = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(checkpoints)))
    names = [
        name for name in reader.get_variable_to_shape_map() if name.endswith("embeddings/.ATTRIBUTES/VARIABLE_VALUE")
    ]
    assert len(names) == len(TABLES), names
    return {name: -reader.get_tensor(name)[:, 0] for name in names}


def wrong(checkpoints: Path, expected: float) -> dict[str, dict[float, int]]:
    """How many rows of each table have another count than the expected one; empty if none has."""
    found = {}
    for name, table in counts(checkpoints).items():
        values, numbers = np.unique(table[table != expected], return_counts=True)
        if len(values):
            found[name] = dict(zip(values.tolist(), numbers.tolist()))
    return found
