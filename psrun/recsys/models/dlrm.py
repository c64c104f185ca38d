"""Deep learning recommendation model (Naumov et al., arXiv:1906.00091, 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.models.model import ArgumentError, Model, concatenated, floats, head, hidden, network_inputs, prepared
from psrun.recsys.models import tables

Gradient = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def dlrm(
    source: DataSource,
    *,
    embedding_dim: int = 16,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    bottom_units: Sequence[int] = (64,),
    top_units: Sequence[int] = (64, 32),
    stack: bool | str = "auto",
    max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
    deduplicate: bool | str = "auto",
    wire: str = "float32",
) -> Model:
    """Dot products of all pairs of the rows of ids and the output of a bottom MLP on the numbers; a top MLP on these.

    Tables are (ids, embedding_dim), one per feature with ids unless features share one. The bottom MLP returns
    `embedding_dim` numbers; they take part in the products like a row, and are also an input of the top MLP, as in the
    paper. A list of ids counts as one row, which its combiner makes of the rows of the ids.

    Args:
      shared_tables: see `psrun.recsys.models.tables.make_tables`.
      stack, max_stacked_table_bytes, deduplicate, wire: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ArgumentError: the data has no features with ids, or lists that cannot be pooled.
    """
    preprocessing, num_ids = prepared(source)
    if not num_ids:
        raise ArgumentError(("", f"dlrm requires features with ids; the data has {', '.join(source.features)}"))
    tables.check_lists(source, num_ids, "dlrm")
    tensors = network_inputs(source, num_ids)
    rows = tables.vectors(
        tables.make_tables(source, num_ids, embedding_dim=embedding_dim, shared_tables=shared_tables),
        *(tensors, source.features, list(num_ids)),
        suffix="rows",
        stack=stack,
        max_stacked_table_bytes=max_stacked_table_bytes,
        deduplicate=deduplicate,
        wire=wire,
    )
    numbers = hidden(floats(tensors), [*bottom_units, embedding_dim])
    vectors = tf_keras.layers.Concatenate(axis=1)([tf_keras.layers.Reshape((1, embedding_dim))(numbers), rows])
    if not top_units:
        products = Interactions()(vectors)
        return Model(tf_keras.Model(tensors, head(concatenated([numbers, products]), source)), preprocessing)
    # Checkpoints of earlier versions have the name that Keras gives a Dense.
    name = tf_keras.layers.Dense(top_units[0]).name
    top = InteractionDense(top_units[0], "relu", name=name)([numbers, vectors])
    return Model(tf_keras.Model(tensors, head(hidden(top, top_units[1:]), source)), preprocessing)


def _pairs(num_vectors: int) -> np.ndarray:
    """Where in a matrix (n, n), row by row, the elements below the diagonal are: (n (n - 1) / 2,)."""
    rows, columns = np.tril_indices(num_vectors, -1)
    return rows * num_vectors + columns


@tf_keras.utils.register_keras_serializable(package="psrun")
class Interactions(tf_keras.layers.Layer):
    """Dot products of each vector with each other: (batch, n, d) to (batch, n (n - 1) / 2)."""

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        num_vectors = vectors.shape[1]
        products = tf.matmul(vectors, vectors, transpose_b=True)
        return tf.gather(tf.reshape(products, [-1, num_vectors**2]), _pairs(num_vectors), axis=1)


@tf_keras.utils.register_keras_serializable(package="psrun")
class InteractionDense(tf_keras.layers.Dense):
    """Keras' Dense on numbers and the dot products of each vector with each other.

    It has the kernel and returns the values that Dense has on the concatenation of the numbers and of what
    `Interactions` returns, up to rounding. Selecting the products of a batch, and their gradients, would take as long
    as computing them; this selects in the kernel, which is small, and takes all n * n products.

    Call arguments:
      inputs: numbers (batch, m) and vectors (batch, n, d).

    Returns:
      (batch, units).
    """

    def __init__(self, units: int, activation: Any = None, **kwargs: Any) -> None:
        super().__init__(units, activation, **kwargs)
        self.input_spec = None  # Dense accepts a single input

    def build(self, input_shape: Any) -> None:
        numbers, vectors = input_shape
        num_vectors = vectors[1]
        super().build([*numbers[:-1], numbers[-1] + num_vectors * (num_vectors - 1) // 2])
        self.input_spec = None

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        numbers, vectors = inputs
        kernel = tf.convert_to_tensor(self.kernel)
        num_numbers = numbers.shape[1]
        outputs = tf.matmul(numbers, kernel[:num_numbers]) + _weighted_products(vectors, kernel[num_numbers:])
        outputs = tf.nn.bias_add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)


@tf.custom_gradient
def _weighted_products(vectors: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
    """The products of a kernel with the dot products of each of n vectors with each other: (batch, units).

    The gradient of all n * n products is symmetric, so that a single product with the vectors gives their gradient.

    Args:
      vectors: (batch, n, d).
      kernel: (n (n - 1) / 2, units).
    """
    num_vectors = vectors.shape[1]
    pairs = _pairs(num_vectors)
    # Each pair is in the matrix twice. The diagonal takes the row of zeros behind the kernel.
    place = np.full(num_vectors**2, len(pairs))
    place[pairs] = np.arange(len(pairs))
    place = place.reshape(num_vectors, num_vectors)
    place = np.minimum(place, place.T).ravel()
    whole = tf.gather(tf.pad(kernel, [[0, 1], [0, 0]]), place)
    products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, num_vectors**2])

    def gradient(of_outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_products = tf.matmul(of_outputs, whole, transpose_b=True)
        of_vectors = tf.matmul(tf.reshape(of_products, [-1, num_vectors, num_vectors]), vectors)
        return of_vectors, tf.gather(tf.matmul(products, of_outputs, transpose_a=True), pairs)

    return tf.matmul(products, 0.5 * whole), gradient
