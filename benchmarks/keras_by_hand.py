"""DLRM in Keras: `python benchmarks/keras_by_hand.py KIND`, see benchmarks/dlrm_by_hand.py.

Kinds: `tf_keras`, `keras3_tensorflow` and `keras3_jax`, by the library and its backend. A model as people write it: an
Embedding layer per table, `compile` and `fit` on a tf.data.Dataset. tf_keras has the legacy form of Adagrad, the one
with a kernel for sparse gradients.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from by_hand import DLRM_BOTTOM_UNITS, DLRM_TOP_UNITS, EPSILON, INITIAL_ACCUMULATOR, LEARNING_RATE, NUM_NUMBERS
from dlrm_by_hand import BELOW, DIM, NUM_TABLES, NUM_VECTORS, Examples, Train, Weights, main


def train_in_tf_keras(weights: Weights, data: Examples) -> Train:
    import tensorflow as tf
    import tf_keras

    def below(products: Any) -> Any:
        return tf.gather(tf.reshape(products, [-1, NUM_VECTORS**2]), BELOW, axis=1)

    optimizer = tf_keras.optimizers.legacy.Adagrad(
        LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR, epsilon=EPSILON
    )
    return _fitted(tf_keras, below, optimizer, weights, data)


def train_in_keras3(backend: str, weights: Weights, data: Examples) -> Train:
    os.environ["KERAS_BACKEND"] = backend
    import keras

    def below(products: Any) -> Any:
        return keras.ops.take(keras.ops.reshape(products, [-1, NUM_VECTORS**2]), BELOW, axis=1)

    optimizer = keras.optimizers.Adagrad(LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR, epsilon=EPSILON)
    return _fitted(keras, below, optimizer, weights, data)


def _fitted(keras: Any, below: Any, optimizer: Any, weights: Weights, data: Examples) -> Train:
    """Trains by `fit`.

    Args:
      keras: tf_keras or keras.
      below: a function of the products of all pairs of vectors, (batch, NUM_VECTORS, NUM_VECTORS), that returns BELOW.
    """
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    model = _model(keras, below, weights)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    ids: np.ndarray = weights.ids_of_tables(data).astype(np.int32)
    everything = [tf.constant(part) for part in (ids, data.numbers, data.labels)]

    def batch(which: Any) -> Any:
        ids, numbers, labels = (tf.gather(part, which) for part in everything)
        return {"ids": ids, "numbers": numbers}, labels

    def train(order: np.ndarray) -> float:
        dataset = tf.data.Dataset.from_tensor_slices(order).map(batch).prefetch(2)
        return model.fit(dataset, shuffle=False, verbose=0).history["loss"][0]

    return train


def _model(keras: Any, below: Any, weights: Weights) -> Any:
    class Below(keras.layers.Layer):
        def call(self, products: Any) -> Any:
            return below(products)

    ids = keras.Input((NUM_TABLES,), dtype="int32", name="ids")
    numbers = keras.Input((NUM_NUMBERS,), name="numbers")
    bottom = numbers
    for units in (*DLRM_BOTTOM_UNITS, DIM):
        bottom = keras.layers.Dense(units, activation="relu")(bottom)
    tables = [keras.layers.Embedding(table.shape[0], DIM) for table in weights.tables()]
    rows = [table(ids[:, column : column + 1]) for column, table in enumerate(tables)]
    vectors = keras.layers.Concatenate(axis=1)([keras.layers.Reshape((1, DIM))(bottom), *rows])
    products = keras.layers.Dot(axes=2)([vectors, vectors])
    top = keras.layers.Concatenate()([bottom, Below()(products)])
    for units in DLRM_TOP_UNITS:
        top = keras.layers.Dense(units, activation="relu")(top)
    model = keras.Model({"ids": ids, "numbers": numbers}, keras.layers.Dense(1)(top))
    for table, values in zip(tables, weights.tables()):
        table.set_weights([values])
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    for layer, values in zip(dense, [*weights.bottom, *weights.top]):
        layer.set_weights(values)
    return model


KINDS = {
    "tf_keras": train_in_tf_keras,
    "keras3_tensorflow": lambda weights, data: train_in_keras3("tensorflow", weights, data),
    "keras3_jax": lambda weights, data: train_in_keras3("jax", weights, data),
}

if __name__ == "__main__":
    main(KINDS, __doc__)
