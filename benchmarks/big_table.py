"""A model of one large table, and ids to look up in it. Selected as `--config-dir benchmarks/conf model=big_table`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import ArraySource, Feature

_LARGEST = 1 << 62
_NUM_EXAMPLES = 20000


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
            train=examples(_NUM_EXAMPLES),
            evaluation=examples(1),
        )


def big_table(source: Ids, *, rows: int, dim: int) -> tf_keras.Model:
    """A table of `rows` x `dim` float32, looked up at the ids modulo `rows`, and one sigmoid unit."""
    ids = tf_keras.Input((1,), dtype=tf.int64, name="id")
    vectors = tf_keras.layers.Embedding(rows, dim, embeddings_initializer="zeros")(ids % rows)
    return tf_keras.Model(
        {"id": ids}, tf_keras.layers.Dense(1, activation="sigmoid")(tf_keras.layers.Flatten()(vectors))
    )
