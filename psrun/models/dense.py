"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import tf_keras

from psrun.data.source import DataSource
from psrun.models.model import floats, head, hidden, inputs


def dense(source: DataSource, *, hidden_units: Sequence[int] = (64, 32)) -> tf_keras.Model:
    """ReLU layers of `hidden_units` over all float features."""
    tensors = inputs(dict(source.features))
    return tf_keras.Model(tensors, head(hidden(floats(tensors), hidden_units), source))
