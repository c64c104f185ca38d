"""Models and data of the benchmarks, for `--config-dir benchmarks/conf` (with benchmarks/ on PYTHONPATH).

`model=clicks` has generated clicks on one table, `data=tables` a category for each table, and `model=big_table` one
large table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import by_hand
import numpy as np
import tensorflow as tf
import tf_keras
from by_hand import HIDDEN_UNITS, NUM_EVAL_EXAMPLES, NUM_EXAMPLES, NUM_FEATURES, NUM_NUMBERS

from psrun import layers
from psrun.data.lists import of_lengths
from psrun.data.source import ArraySource, Feature

_LARGEST = 1 << 62
_NUM_IDS = 20000


class Clicks(ArraySource):
    """The examples of `by_hand.generated`, with its arguments."""

    def __init__(
        self,
        *,
        rows: int,
        skew: float = 0.0,
        num_examples: int = NUM_EXAMPLES,
        num_eval_examples: int = NUM_EVAL_EXAMPLES,
        seed: int = 1,
    ) -> None:
        train, evaluation = by_hand.generated(
            rows=rows, skew=skew, num_examples=num_examples, num_eval_examples=num_eval_examples, seed=seed
        )
        self.rows = rows
        super().__init__(
            features={"ids": Feature((NUM_FEATURES,), tf.int64), "numbers": Feature((NUM_NUMBERS,), tf.float32)},
            task="binary",
            train=train,
            evaluation=evaluation,
        )


def clicks(source: Clicks, *, dim: int = 16, hidden_units: Sequence[int] = HIDDEN_UNITS) -> tf_keras.Model:
    """One table for all ids, a multilayer perceptron over the rows and the numbers, one sigmoid unit: plain Keras."""
    return model(tf_keras.layers.Embedding(source.rows, dim), hidden_units)


def clicks_table(
    source: Clicks, *, dim: int = 16, deduplicate: bool | str = "auto", wire: str = "float32"
) -> tf_keras.Model:
    """The same with psrun's embedding layer."""
    return model(layers.Embedding(source.rows, dim, deduplicate=deduplicate, wire=wire))


def model(table: tf_keras.layers.Layer, hidden_units: Sequence[int] = HIDDEN_UNITS) -> tf_keras.Model:
    """The same with `table` to look the ids up in."""
    inputs = {
        "ids": tf_keras.Input((NUM_FEATURES,), dtype=tf.int64, name="ids"),
        "numbers": tf_keras.Input((NUM_NUMBERS,), name="numbers"),
    }
    hidden = tf_keras.layers.Concatenate()([tf_keras.layers.Flatten()(table(inputs["ids"])), inputs["numbers"]])
    for units in hidden_units:
        hidden = tf_keras.layers.Dense(units, activation="relu")(hidden)
    return tf_keras.Model(inputs, tf_keras.layers.Dense(1, activation="sigmoid")(hidden))


class ManyTables(ArraySource):
    """The examples of `by_hand.of_tables`, with its arguments.

    Args:
      list_length: each feature is a list of this number of values; 0: one value, not a list.
    """

    def __init__(
        self,
        *,
        num_tables: int,
        rows: int,
        skew: float = 0.0,
        num_examples: int = NUM_EXAMPLES,
        list_length: int = 0,
        seed: int = 1,
    ) -> None:
        arrays, labels = by_hand.of_tables(
            num_tables=num_tables, rows=rows, width=max(1, list_length), skew=skew, num_examples=num_examples, seed=seed
        )
        values: dict[str, Any] = dict(arrays)
        features = {"numbers": Feature((NUM_NUMBERS,), tf.float32)}
        for name in arrays.keys() - features.keys():
            if list_length:
                features[name] = Feature((None,), tf.int64, num_buckets=rows, max_values=list_length)
                values[name] = of_lengths(arrays[name].ravel(), np.full(num_examples, list_length))
            else:
                features[name] = Feature((1,), tf.int64, num_buckets=rows)
        examples = values, labels
        super().__init__(features=features, task="binary", train=examples, evaluation=examples)


class Ids(ArraySource):
    """A random id an example, and a random label."""

    def __init__(self, *, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)

        def examples(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            ids = rng.integers(_LARGEST, size=(count, 1))
            return {"id": ids}, rng.integers(2, size=(count, 1)).astype(np.float32)

        super().__init__(
            features={"id": Feature((1,), tf.int64)},
            task="binary",
            train=examples(_NUM_IDS),
            evaluation=examples(1),
        )


def big_table(source: Ids, *, rows: int, dim: int) -> tf_keras.Model:
    """A table of `rows` x `dim` float32, looked up at the ids modulo `rows`, and one sigmoid unit."""
    ids = tf_keras.Input((1,), dtype=tf.int64, name="id")
    vectors = tf_keras.layers.Embedding(rows, dim, embeddings_initializer="zeros")(ids % rows)
    return tf_keras.Model(
        {"id": ids}, tf_keras.layers.Dense(1, activation="sigmoid")(tf_keras.layers.Flatten()(vectors))
    )
