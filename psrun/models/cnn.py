"""A small convolutional network."""

from __future__ import annotations

from collections.abc import Sequence

import tf_keras

from psrun.data.source import DataSource
from psrun.models.model import ArgumentError, Model, head, hidden, inputs, refuse_lists


def cnn(source: DataSource, *, filters: Sequence[int] = (16, 32), hidden_units: Sequence[int] = (64,)) -> Model:
    """3 x 3 convolutions, each followed by max pooling, then ReLU layers, on the only image feature of the data."""
    refuse_lists(source, "cnn")
    images = [name for name, feature in source.features.items() if len(feature.shape) == 3]
    if len(source.features) != 1 or not images:
        there = ", ".join(source.features)
        raise ArgumentError(("", f"cnn takes one feature of images; the data has {there}; choose another model"))
    tensors = inputs(dict(source.features))
    (tensor,) = tensors.values()
    for channels in filters:
        tensor = tf_keras.layers.Conv2D(channels, 3, padding="same", activation="relu")(tensor)
        tensor = tf_keras.layers.MaxPooling2D()(tensor)
    tensor = hidden(tf_keras.layers.Flatten()(tensor), hidden_units)
    return Model(tf_keras.Model(tensors, head(tensor, source)))
