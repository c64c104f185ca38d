"""Wide and deep learning (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.models import tables
from psrun.models.model import Model, concatenated, head, hidden, network_inputs, prepared


def wide_deep(
    source: DataSource,
    *,
    embedding_dim: int | Mapping[str, int] = 8,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    hidden_units: Sequence[int] = (64, 32),
    dropout: float = 0.0,
) -> Model:
    """The sum of a linear model (one weight per value of a categorical feature) and an MLP on embeddings and floats.

    The last layer combines both parts, as in the paper. Tables are (ids, 1), one per feature with ids, and
    (ids, embedding_dim), one per feature with ids unless features share one; with a vocabulary, row 0 is for values
    outside of it. The weights of the linear part are never shared.

    Args:
      embedding_dim, shared_tables: see `psrun.models.tables.of`.
    """
    preprocessing, num_ids = prepared(source)
    shared = tables.of(source, num_ids, embedding_dim=embedding_dim, shared_tables=shared_tables)
    tensors = network_inputs(source, num_ids)
    layers = tf_keras.layers
    wide = []
    for name, size in num_ids.items():
        table = layers.Embedding(size, 1, embeddings_initializer="zeros", name=f"{name}_wide")
        wide.append(layers.Flatten()(table(tensors[name])))
    rows = tables.rows(
        shared, tensors, lambda table: layers.Embedding(table.num_ids, table.dim, name=f"{table.name}_deep")
    )
    deep = [layers.Flatten()(rows[name]) for name in num_ids]
    numbers = [layers.Flatten()(tensor) for tensor in tensors.values() if tensor.dtype == tf.float32]
    top = [*wide, *numbers, hidden(concatenated([*deep, *numbers]), hidden_units, dropout)]
    return Model(tf_keras.Model(tensors, head(concatenated(top), source)), preprocessing)
