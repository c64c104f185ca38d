"""Generated clicks: ids of categories and numbers, and whether somebody clicked. Selected as `model=clicks`.

psrun --config-dir benchmarks/conf model=clicks        (with benchmarks/ on PYTHONPATH)
"""

from __future__ import annotations

from collections.abc import Sequence

import click_examples
import tensorflow as tf
import tf_keras
from click_examples import HIDDEN_UNITS, NUM_EVAL_EXAMPLES, NUM_EXAMPLES, NUM_FEATURES, NUM_NUMBERS

from psrun import layers
from psrun.data.source import ArraySource, Feature


class Clicks(ArraySource):
    """The examples of `click_examples.generated`, with its arguments."""

    def __init__(
        self,
        *,
        rows: int,
        skew: float = 0.0,
        num_examples: int = NUM_EXAMPLES,
        num_eval_examples: int = NUM_EVAL_EXAMPLES,
        seed: int = 1,
    ) -> None:
        train, evaluation = click_examples.generated(
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
