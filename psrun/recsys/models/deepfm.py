"""DeepFM (Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.models.model import ArgumentError, Model, concatenated, head, hidden, network_inputs, numbers_of, prepared
from psrun.recsys.models import tables


def deepfm(
    source: DataSource,
    *,
    embedding_dim: int = 16,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    hidden_units: Sequence[int] = (128, 64),
    dropout: float = 0.0,
    stack: bool | str = "auto",
    max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
    deduplicate: bool | str = "auto",
) -> Model:
    """A weight for each value, the products of all pairs of embeddings (a factorization machine), and an MLP on the
    same embeddings and the numbers. The last layer weighs the three parts, which the paper adds.

    Tables are (ids, 1) and (ids, embedding_dim), one per feature with ids unless features share one.

    Args:
      shared_tables: see `psrun.recsys.models.tables.make_tables`.
      stack, max_stacked_table_bytes, deduplicate: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ArgumentError: the data has no features with ids, or lists that cannot be pooled.
    """
    preprocessing, num_ids = prepared(source)
    if not num_ids:
        raise ArgumentError(("", f"deepfm requires features with ids; the data has {', '.join(source.features)}"))
    tables.check_lists(source, num_ids, "deepfm")
    tensors = network_inputs(source, num_ids)
    order = list(num_ids)
    stored: dict[str, Any] = {
        "stack": stack,
        "max_stacked_table_bytes": max_stacked_table_bytes,
        "deduplicate": deduplicate,
    }
    of_values = tables.make_tables(source, num_ids, embedding_dim=1, shared_tables=shared_tables)
    of_vectors = tables.make_tables(source, num_ids, embedding_dim=embedding_dim, shared_tables=shared_tables)
    linear = tables.side_by_side(of_values, tensors, source.features, order, suffix="linear", **stored)
    vectors = tables.vectors(of_vectors, tensors, source.features, order, suffix="rows", **stored)
    numbers = numbers_of(tensors)
    deep = hidden(concatenated([tf_keras.layers.Flatten()(vectors), *numbers]), hidden_units, dropout)
    parts = concatenated([linear, *numbers, FactorizationMachine()(vectors), deep])
    return Model(tf_keras.Model(tensors, head(parts, source)), preprocessing)


@tf_keras.utils.register_keras_serializable(package="psrun")
class FactorizationMachine(tf_keras.layers.Layer):
    """The sum of the dot products of all pairs of vectors: (batch, n, d) to (batch, 1) (Rendle 2010)."""

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        square_of_sum = tf.square(tf.reduce_sum(vectors, 1))
        sum_of_squares = tf.reduce_sum(tf.square(vectors), 1)
        return tf.reduce_sum(square_of_sum - sum_of_squares, 1, keepdims=True) / 2
