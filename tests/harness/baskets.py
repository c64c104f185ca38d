"""Examples for DLRM in one order, so that another program can go on with the next batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from psrun.data.source import ArraySource, Batches, Feature

BATCH_SIZE = 16
NUM_EXAMPLES = 50 * BATCH_SIZE
_WORDS = tuple(f"item {number}" for number in range(30))


def examples() -> dict[str, np.ndarray]:
    """The features by name, and `label`; some items are unknown."""
    rng = np.random.default_rng(11)
    numbers = rng.normal(size=(NUM_EXAMPLES, 3)).astype(np.float32)
    users = rng.zipf(1.5, size=(NUM_EXAMPLES, 1)) % 40
    shops = rng.integers(5, size=(NUM_EXAMPLES, 1))
    items = np.array([*_WORDS, "unknown"])[rng.integers(31, size=(NUM_EXAMPLES, 1))]
    chance = 1 / (1 + np.exp(-(numbers[:, :1] + users % 3 - shops % 2)))
    label = (rng.random((NUM_EXAMPLES, 1)) < chance).astype(np.float32)
    return {"numbers": numbers, "user": users, "shop": shops, "item": items.astype(bytes), "label": label}


class Baskets(ArraySource):
    """Batch n has the examples from n times its size on."""

    def __init__(self) -> None:
        features: dict[str, np.ndarray] = examples()
        label = features.pop("label")
        described = {
            "numbers": Feature((3,), tf.float32),
            "user": Feature((1,), tf.int64, vocabulary=tuple(range(40))),
            "shop": Feature((1,), tf.int64, vocabulary=tuple(range(5))),
            "item": Feature((1,), tf.string, vocabulary=_WORDS),
        }
        whole = ({name: features[name] for name in described}, label)
        super().__init__(features=described, task="binary", train=whole, evaluation=whole)

    def read(self, batches: Batches, convert: Any = None) -> Batches:
        def in_order(number: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            size = tf.size(numbers, tf.int64)
            return number, (number * size + tf.range(size)) % NUM_EXAMPLES

        return super().read(batches.map(in_order), *([] if convert is None else [convert]))
