"""The data and the model of this project. Replace both with your own, and name them in conf/."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras

from psrun import layers
from psrun.data.source import Arrays, ArraySource, Feature


class Ratings(ArraySource):
    """Pairs of a user and an item, generated; the label is 1 where the user's taste fits the item.

    Args:
      seed: of the random numbers; psrun passes the seed of the run.
    """

    def __init__(
        self,
        *,
        num_users: int = 200,
        num_items: int = 100,
        num_train_examples: int = 20_000,
        num_eval_examples: int = 2_000,
        seed: int = 1,
    ) -> None:
        rng = np.random.default_rng(seed)
        tastes, kinds = rng.normal(size=(num_users, 2)), rng.normal(size=(num_items, 2))

        def examples(count: int) -> Arrays:
            users, items = rng.integers(num_users, size=(count, 1)), rng.integers(num_items, size=(count, 1))
            fits = (tastes[users[:, 0]] * kinds[items[:, 0]]).sum(axis=1, keepdims=True) > 0
            return {"user": users, "item": items}, fits.astype(np.float32)

        self.num_users, self.num_items = num_users, num_items
        super().__init__(
            features={"user": Feature((1,), tf.int64), "item": Feature((1,), tf.int64)},
            task="binary",
            train=examples(num_train_examples),
            evaluation=examples(num_eval_examples),
        )


def factorization(source: Ratings, *, embedding_dim: int = 8) -> tf_keras.Model:
    """The probability of label 1, (batch, 1): a sigmoid of the dot product of a user and an item embedding."""
    inputs = {name: tf_keras.Input(each.shape, dtype=each.dtype, name=name) for name, each in source.features.items()}
    users = layers.Embedding(source.num_users, embedding_dim, name="users")(inputs["user"])
    items = layers.Embedding(source.num_items, embedding_dim, name="items")(inputs["item"])
    flat = tf_keras.layers.Flatten()
    product = tf_keras.layers.Dot(axes=1)([flat(users), flat(items)])
    return tf_keras.Model(inputs, tf_keras.layers.Activation("sigmoid")(product))
