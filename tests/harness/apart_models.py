"""Models whose tables an export has apart, or cannot have apart."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from psrun import layers


class Several(tf_keras.Model):
    """Tables that are looked up twice, with a row for ids outside of them; the ids count as numbers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = layers.EmbeddingCollection(
            [layers.Table("a.b", ("ids",), num_ids=7, dim=3), layers.Table("pooled", ("pooled",), num_ids=50, dim=3)],
            oov="row",
            combiner={"pooled": "mean"},
        )
        self.alone = layers.Embedding(9, 3, oov="row")
        self.top = tf_keras.layers.Dense(1)

    def call(self, features: Any) -> tf.Tensor:
        ids = features["ids"]
        rows = [self.tables({"ids": ids, "pooled": ids}), self.tables({"ids": ids - 3, "pooled": ids}), self.alone(ids)]
        flat = [tf_keras.layers.Flatten()(each) for each in tf.nest.flatten(rows)]
        return self.top(tf.concat([tf.cast(ids, tf.float32), *flat], 1))


def several(source: Any) -> tf_keras.Model:
    return Several()


class Shifted(tf_keras.layers.Embedding):
    """Looks up other ids than it gets: an export has its table in the dense part."""

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return super().call((ids + 1) % self.input_dim)


def shifted(source: Any) -> tf_keras.Model:
    ids = tf_keras.Input((4,), dtype=tf.int64, name="ids")
    both = [layers.Embedding(50, 2)(ids), Shifted(51, 2)(ids)]
    looked_up = tf_keras.layers.Flatten()(tf_keras.layers.Concatenate()(both))
    return tf_keras.Model({"ids": ids}, tf_keras.layers.Dense(1)(looked_up))


def tied(source: Any) -> tf_keras.Model:
    """The sum of a whole table is an output."""
    ids = tf_keras.Input((4,), dtype=tf.int64, name="ids")
    table = layers.Embedding(50, 1)
    looked_up = tf_keras.layers.Flatten()(table(ids))
    return tf_keras.Model({"ids": ids}, Sum(table)(looked_up))


class Sum(tf_keras.layers.Layer):
    def __init__(self, table: layers.Embedding) -> None:
        super().__init__()
        self.table = table

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(inputs, 1, keepdims=True) * tf.reduce_sum(self.table.embeddings)


def chained(source: Any) -> tf_keras.Model:
    """A table whose ids are computed from the rows of another one."""
    ids = tf_keras.Input((4,), dtype=tf.int64, name="ids")
    closest = tf_keras.layers.Lambda(lambda rows: tf.argmax(rows, -1))(layers.Embedding(50, 3, name="first")(ids))
    looked_up = tf_keras.layers.Flatten()(layers.Embedding(3, 2, name="second")(closest))
    return tf_keras.Model({"ids": ids}, tf_keras.layers.Dense(1)(looked_up))


def branching(source: Any) -> tf_keras.Model:
    """A table that is looked up in a branch."""
    ids = tf_keras.Input((4,), dtype=tf.int64, name="ids")
    return tf_keras.Model({"ids": ids}, tf_keras.layers.Dense(1)(Branch(layers.Embedding(50, 2))(ids)))


class Branch(tf_keras.layers.Layer):
    def __init__(self, table: layers.Embedding) -> None:
        super().__init__()
        self.table = table

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        flat = [-1, ids.shape[1] * self.table.output_dim]
        return tf.cond(tf.size(ids) > 0, lambda: tf.reshape(self.table(ids), flat), lambda: tf.zeros([0, flat[1]]))
