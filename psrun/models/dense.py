"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import tf_keras

from psrun.data.source import DataSource
from psrun.models.model import Model, floats, head, hidden, network_inputs, prepared


def dense(source: DataSource, *, hidden_units: Sequence[int] = (64, 32)) -> Model:
    """ReLU layers of `hidden_units` on all float features but lists."""
    preprocessing, num_ids = prepared(source)
    tensors = network_inputs(source, num_ids)
    network = tf_keras.Model(tensors, head(hidden(floats(tensors), hidden_units), source))
    unused = [name for name, feature in source.features.items() if name in num_ids or feature.is_list]
    return Model(network, preprocessing, unused=unused)
