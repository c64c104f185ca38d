"""A linear model of a table of ids, whose every number can be worked out by hand; and features that share a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun import layers
from psrun.data.source import ArraySource, Feature
from psrun.models.model import Model, head, network_inputs, prepared

ROWS, IDS, DIM = 50, 4, 3


class Ids(ArraySource):
    """Random ids, each example with a number to predict from them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)

        def examples(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            return {"ids": rng.integers(ROWS, size=(count, IDS))}, rng.normal(size=(count, 1)).astype(np.float32)

        super().__init__(
            features={"ids": Feature((IDS,), tf.int64)}, task="regression", train=examples(64), evaluation=examples(16)
        )


def model(source: Ids, **options: Any) -> tf_keras.Model:
    """The mean over rows and ids, through a dense layer."""
    ids = tf_keras.Input((IDS,), dtype=tf.int64, name="ids")
    averaged = tf_keras.layers.GlobalAveragePooling1D()(layers.Embedding(ROWS, DIM, **options)(ids))
    return tf_keras.Model({"ids": ids}, tf_keras.layers.Dense(1, kernel_initializer="ones")(averaged))


def table_alone(source: Ids) -> tf_keras.Model:
    """The mean over rows of one number and ids: no dense weight."""
    ids = tf_keras.Input((IDS,), dtype=tf.int64, name="ids")
    return tf_keras.Model({"ids": ids}, tf_keras.layers.GlobalAveragePooling1D()(layers.Embedding(ROWS, 1)(ids)))


def partly_frozen(source: Ids) -> tf_keras.Model:
    """A table and a dense layer that are trained, beside others that are not."""
    ids = tf_keras.Input((IDS,), dtype=tf.int64, name="ids")
    tables = [layers.Embedding(ROWS, DIM, embeddings_initializer="ones", trainable=each) for each in (True, False)]
    kept = layers.EmbeddingCollection([layers.Table("kept", ("ids",), num_ids=ROWS, dim=DIM, initializer="ones")])
    kept.trainable = False
    rows = tf_keras.layers.Concatenate()([*(table(ids) for table in tables), kept({"ids": ids})["ids"]])
    hidden = tf_keras.layers.Dense(4, kernel_initializer="ones", trainable=False)(tf_keras.layers.Flatten()(rows))
    return tf_keras.Model({"ids": ids}, tf_keras.layers.Dense(1, kernel_initializer="ones")(hidden))


WORDS = ("ant", "bee", "cat", "dog", "eel", "fox")


class Pairs(ArraySource):
    """Two features with the same values, most of them in both of an example: two words clicked on, and one bought.

    Args:
      hashed: whether the values are hashed; else they are a vocabulary.
    """

    def __init__(self, *, hashed: bool = False) -> None:
        rng = np.random.default_rng(5)

        def examples(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            ids = rng.integers(len(WORDS), size=(count, 3))
            words = np.array(WORDS, dtype=bytes)[ids]
            inputs = {"clicked": words[:, :2], "bought": words[:, 2:]}
            inputs["price"] = rng.normal(size=(count, 1)).astype(np.float32)
            return inputs, (ids[:, 0] == ids[:, 2]).astype(np.float32)[:, np.newaxis]

        known: dict[str, Any] = {"num_buckets": 20} if hashed else {"vocabulary": WORDS}
        super().__init__(
            features={
                "clicked": Feature((2,), tf.string, **known), "bought": Feature((1,), tf.string, **known),
                "price": Feature((1,), tf.float32),
            },
            task="binary", train=examples(64), evaluation=examples(16),
        )  # fmt: skip


class Branching(tf_keras.metrics.Metric):
    """Counts examples, in a branch and by assigning."""

    def __init__(self, name: str = "branching") -> None:
        super().__init__(name=name)
        self.branched = self.add_weight(name="branched", initializer="zeros")
        self.assigned = self.add_weight(name="assigned", initializer="zeros")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        count = tf.cast(tf.shape(y_true)[0], tf.float32)
        tf.cond(tf.reduce_sum(y_true) > -1e9, lambda: self.branched.assign_add(count), lambda: self.branched.value())
        self.assigned.assign(self.assigned + count)

    def result(self) -> tf.Tensor:
        return self.branched * 1e6 + self.assigned


def branching(source: Ids) -> Model:
    return Model(model(source), metrics=lambda: [Branching()])


class Conditioned(tf_keras.layers.Layer):
    """A weight that is read in a branch, and one that is read in a loop."""

    def build(self, input_shape: Any) -> None:
        self.branch_kernel = self.add_weight(name="branch_kernel", shape=(DIM,), initializer="ones")
        self.loop_kernel = self.add_weight(name="loop_kernel", shape=(DIM,), initializer="ones")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        inputs = tf.cond(tf.shape(inputs)[0] > 1, lambda: inputs * self.branch_kernel, lambda: inputs)
        for _ in tf.range(2):
            inputs = inputs * self.loop_kernel
        return inputs


def constrained(source: Ids) -> tf_keras.Model:
    """Kernels that must not be negative, and weights in control flow."""
    ids = tf_keras.Input((IDS,), dtype=tf.int64, name="ids")
    averaged = tf_keras.layers.GlobalAveragePooling1D()(layers.Embedding(ROWS, DIM)(ids))
    hidden = tf_keras.layers.Dense(DIM, kernel_constraint="non_neg")(Conditioned()(averaged))
    return tf_keras.Model({"ids": ids}, tf_keras.layers.Dense(1, kernel_constraint="non_neg")(hidden))


def rooted(source: Ids) -> tf_keras.Model:
    """The root of rows that start with zeros: the first loss is finite, its gradient is not."""
    ids = tf_keras.Input((IDS,), dtype=tf.int64, name="ids")
    rows = layers.Embedding(ROWS, DIM, embeddings_initializer="zeros")(ids)
    averaged = tf_keras.layers.GlobalAveragePooling1D()(tf_keras.layers.Lambda(tf.sqrt)(rows))
    return tf_keras.Model({"ids": ids}, tf_keras.layers.Dense(1)(averaged))


def of_one_category(source: Any) -> Model:
    """A prediction from the rows of category C1 of Criteo's layout."""
    preprocessing, num_ids = prepared(source)
    tensors = network_inputs(source, num_ids)
    rows = layers.Embedding(num_ids["C1"], DIM)(tensors["C1"])
    return Model(tf_keras.Model(tensors, head(tf_keras.layers.Flatten()(rows), source)), preprocessing)


class Basket(ArraySource):
    """Four features with ids, one of them three times an example.

    Args:
      outside: whether one shop has an id that its table has no row for.
    """

    SIZES = {"item": (300, 1), "shop": (7, 1), "city": (40, 3), "brand": (12, 1)}  # ids, and how many an example

    def __init__(self, *, outside: bool = False) -> None:
        rng = np.random.default_rng(7)

        def examples(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            ids = {name: rng.integers(size, size=(count, width)) for name, (size, width) in self.SIZES.items()}
            if outside:
                ids["shop"][:] = 7
            return ids, rng.normal(size=(count, 1)).astype(np.float32)

        features = {name: Feature((width,), tf.int64) for name, (_, width) in self.SIZES.items()}
        super().__init__(features=features, task="regression", train=examples(64), evaluation=examples(16))


def _on_rows(source: Basket, of: Any, root: bool = False) -> tf_keras.Model:
    """A linear model of what a function makes of inputs: rows by feature."""
    inputs = {name: tf_keras.Input((width,), dtype=tf.int64, name=name) for name, (_, width) in source.SIZES.items()}
    rows = of(inputs)
    flat = tf_keras.layers.Concatenate()([tf_keras.layers.Flatten()(rows[name]) for name in source.SIZES])
    flat = tf_keras.layers.Lambda(tf.sqrt)(flat) if root else flat
    return tf_keras.Model(inputs, tf_keras.layers.Dense(1, kernel_initializer="ones")(flat))


def basket(source: Basket, *, root: bool = False, **options: Any) -> tf_keras.Model:
    """A linear model of rows of two widths.

    Args:
      root: whether rows begin with zeros and the model takes their root, whose gradient is not finite.
      options: of the collection.
    """
    first = "zeros" if root else "ones"  # shards draw other random numbers than whole tables do
    tables = [
        layers.Table(name, (name,), size, 2 if name == "brand" else DIM, first)
        for name, (size, _) in source.SIZES.items()
    ]
    return _on_rows(source, layers.EmbeddingCollection(tables, name="tables", **options), root)


def two_collections(source: Basket, *, stack: bool) -> tf_keras.Model:
    """A linear model whose tables are in the collections `first` and `second`."""

    def rows(inputs: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for title, names in (("first", ("item", "shop")), ("second", ("city", "brand"))):
            tables = [layers.Table(name, (name,), source.SIZES[name][0], DIM, "ones") for name in names]
            found |= layers.EmbeddingCollection(tables, name=title, stack=stack)({name: inputs[name] for name in names})
        return found

    return _on_rows(source, rows)


def baskets(source: Basket) -> tf_keras.Model:
    """Two collections with tables of the same names."""
    one = basket(source)
    two = tf_keras.models.clone_model(one)
    return tf_keras.Model(one.inputs, tf_keras.layers.Add()([one.output, two(one.inputs)]))
