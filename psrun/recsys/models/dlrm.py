"""Deep learning recommendation model (Naumov et al., arXiv:1906.00091, 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.models.model import ArgumentError, Model, concatenated, floats, head, hidden, network_inputs, prepared
from psrun.recsys.models import tables


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
    top = hidden(concatenated([numbers, Interactions()(vectors)]), top_units)
    return Model(tf_keras.Model(tensors, head(top, source)), preprocessing)


@tf_keras.utils.register_keras_serializable(package="psrun")
class Interactions(tf_keras.layers.Layer):
    """Dot products of each vector with each other: (batch, n, d) to (batch, n (n - 1) / 2)."""

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        products = tf.matmul(vectors, vectors, transpose_b=True)
        return _below_diagonal(tf.reshape(products, [-1, vectors.shape[1] ** 2]), vectors.shape[1])


def _below_diagonal(matrices: tf.Tensor, size: int) -> tf.Tensor:
    """The elements below the diagonal of each matrix, row by row: (batch, n * n) to (batch, n (n - 1) / 2).

    `tf.gather` along the last axis copies element by element, in its gradient after two transpositions.
    """
    rows = range(1, size)

    @tf.custom_gradient
    def select(matrices: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        widths = [size, *(width for row in rows for width in (row, size - row))]

        def gradient(selected: tf.Tensor) -> tf.Tensor:
            zeros = tf.zeros([tf.shape(selected)[0], size], selected.dtype)
            parts = [(part, zeros[:, : size - row]) for row, part in zip(rows, tf.split(selected, [*rows], axis=1))]
            return tf.concat([zeros, *(each for pair in parts for each in pair)], 1)

        return tf.concat(tf.split(matrices, widths, axis=1)[1::2], 1), gradient

    return select(matrices)
