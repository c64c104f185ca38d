"""Generated clicks: ids of categories and numbers, and whether somebody clicked. Selected as `model=clicks`.

psrun --config-dir benchmarks/conf model=clicks        (with benchmarks/ on PYTHONPATH)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from psrun import layers
from psrun.data.source import ArraySource, Feature

NUM_FEATURES, NUM_NUMBERS = 26, 13
HIDDEN_UNITS = (128, 64)


class Clicks(ArraySource):
    """Examples of 26 ids out of one range and 13 numbers, with labels of a logistic model that is known.

    Args:
      rows: how many ids there are.
      skew: 0 for ids that are all as frequent; else the exponent of Zipf's law (more than 1).
    """

    def __init__(
        self, *, rows: int, skew: float = 0.0, num_examples: int = 65536, num_eval_examples: int = 16384, seed: int = 1
    ) -> None:
        rng = np.random.default_rng(seed)
        self.rows = rows
        weights = rng.normal(size=rows).astype(np.float32)
        slopes = rng.normal(size=NUM_NUMBERS).astype(np.float32) / np.sqrt(NUM_NUMBERS)

        def examples(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            size = (count, NUM_FEATURES)
            ids = rng.integers(rows, size=size) if not skew else (rng.zipf(skew, size=size) - 1) % rows
            numbers = rng.normal(size=(count, NUM_NUMBERS)).astype(np.float32)
            logit = weights[ids].sum(1) / np.sqrt(NUM_FEATURES) + numbers @ slopes
            label = rng.random(count) < 1 / (1 + np.exp(-logit))
            return {"ids": ids, "numbers": numbers}, label[:, None].astype(np.float32)

        super().__init__(
            features={"ids": Feature((NUM_FEATURES,), tf.int64), "numbers": Feature((NUM_NUMBERS,), tf.float32)},
            task="binary",
            train=examples(num_examples),
            evaluation=examples(num_eval_examples),
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
