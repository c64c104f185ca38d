"""The model of TensorFlow's parameter server tutorial: look up, embed, average, one unit."""

from __future__ import annotations

import tf_keras

from psrun.data.source import DataSource
from psrun.models.model import Model, concatenated, head, network_inputs, prepared, refuse_lists


def embedding(source: DataSource, *, embedding_dim: int = 20) -> Model:
    """Embeds each feature with ids in its own table, and averages over its values.

    The tables have shape (ids, embedding_dim); with a vocabulary, row 0 is for values outside of it.
    """
    refuse_lists(source, "embedding")
    preprocessing, num_ids = prepared(source)
    tensors = network_inputs(source, num_ids)
    averaged = [
        tf_keras.layers.GlobalAveragePooling1D()(tf_keras.layers.Embedding(size, embedding_dim)(tensors[name]))
        for name, size in num_ids.items()
    ]
    unused = [name for name in source.features if name not in num_ids]
    return Model(tf_keras.Model(tensors, head(concatenated(averaged), source)), preprocessing, unused=unused)
