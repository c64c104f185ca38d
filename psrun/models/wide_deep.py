"""Wide and deep learning (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.layers.layout import Table
from psrun.models import lists, tables
from psrun.models.model import Model, concatenated, head, hidden, is_ragged, network_inputs, prepared


def wide_deep(
    source: DataSource,
    *,
    embedding_dim: int | Mapping[str, int] = 8,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    hidden_units: Sequence[int] = (64, 32),
    dropout: float = 0.0,
    stack: bool | str = "auto",
    max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
    deduplicate: bool | str = "auto",
) -> Model:
    """The sum of a linear model (one weight per value of a categorical feature) and an MLP on embeddings and floats.

    The last layer combines both parts, as in the paper. Tables are (ids, 1), one per feature with ids, and
    (ids, embedding_dim), one per feature with ids unless features share one; with a vocabulary, row 0 is for values
    outside of it. The weights of the linear part are never shared. Both parts pool lists by their combiners.

    Args:
      embedding_dim, shared_tables: see `psrun.models.tables.of`.
      stack, max_stacked_table_bytes, deduplicate: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ConfigError: a list cannot be pooled.
    """
    preprocessing, num_ids = prepared(source)
    lists.check(source, num_ids, "wide_deep")
    shared = tables.of(source, num_ids, embedding_dim=embedding_dim, shared_tables=shared_tables)
    tensors = network_inputs(source, num_ids)
    stored = {"stack": stack, "max_stacked_table_bytes": max_stacked_table_bytes, "deduplicate": deduplicate}
    # Rows by id, as in checkpoints of psrun 0.1.0.
    linear = [Table(name, (name,), size, 1, "zeros", spread=False) for name, size in num_ids.items()]
    shared = [replace(table, spread=False) for table in shared]
    wide = [tables.side_by_side(linear, tensors, source.features, num_ids, suffix="wide", **stored)] if num_ids else []
    deep = [tables.side_by_side(shared, tensors, source.features, num_ids, suffix="deep", **stored)] if num_ids else []
    dense = [tensor for tensor in tensors.values() if tensor.dtype == tf.float32 and not is_ragged(tensor)]
    numbers = [tf_keras.layers.Flatten()(tensor) for tensor in dense]
    top = [*wide, *numbers, hidden(concatenated([*deep, *numbers]), hidden_units, dropout)]
    return Model(tf_keras.Model(tensors, head(concatenated(top), source)), preprocessing)
