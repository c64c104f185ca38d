"""Wide and deep learning (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.models.model import Model, concatenated, dims, head, hidden, network_inputs, prepared


def wide_deep(
    source: DataSource,
    *,
    embedding_dim: int | Mapping[str, int] = 8,
    hidden_units: Sequence[int] = (64, 32),
    dropout: float = 0.0,
) -> Model:
    """The sum of a linear model (a weight a value of each categorical feature) and an MLP over embeddings and floats.

    Both parts meet in the last layer, as in the paper. Tables are (ids, 1) and (ids, embedding_dim), one
    of each a feature with ids; with a vocabulary, row 0 is for values outside of it.

    Args:
      embedding_dim: of all features, or by name, as of `dims`.
    """
    preprocessing, num_ids = prepared(source)
    width = dims(embedding_dim, num_ids)
    tensors = network_inputs(source, num_ids)
    layers = tf_keras.layers
    wide, deep = [], []
    for name, size in num_ids.items():
        table = layers.Embedding(size, 1, embeddings_initializer="zeros", name=f"{name}_wide")
        wide.append(layers.Flatten()(table(tensors[name])))
        deep.append(layers.Flatten()(layers.Embedding(size, width[name], name=f"{name}_deep")(tensors[name])))
    numbers = [layers.Flatten()(tensor) for tensor in tensors.values() if tensor.dtype == tf.float32]
    top = [*wide, *numbers, hidden(concatenated([*deep, *numbers]), hidden_units, dropout)]
    return Model(tf_keras.Model(tensors, head(concatenated(top), source)), preprocessing)
