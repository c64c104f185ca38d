"""Models with one unnamed input on data with one feature."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.layers.adapter import AdaptedModel
from psrun.models.model import Model


def passed(model: Model, features: Collection[str]) -> Model:
    """`model` with preprocessing that selects the only feature, if its network takes one tensor.

    A model with its own preprocessing is unchanged: the preprocessing defines the inputs of the network.

    Raises:
      ConfigError: the network takes one tensor, but there are several features.
    """
    if model.preprocessing is not None or not _takes_one_tensor(model.network, features):
        return model
    if len(features) != 1:
        message = f"takes one input, but the data has the features {', '.join(features)}; add an input for each"
        raise ConfigError([Problem("model", f"{message}: tf_keras.Model({{name: tf_keras.Input(...), ...}}, outputs)")])
    return replace(model, preprocessing=_only)


def _only(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
    (value,) = features.values()
    return value


def _takes_one_tensor(network: tf_keras.Model, features: Collection[str]) -> bool:
    """Whether the network takes one tensor instead of features by name; subclasses of Model take features by name."""
    if isinstance(network, AdaptedModel):
        return network.takes_one_tensor(features)
    if isinstance(network, tf_keras.Sequential) and not network.inputs:
        return bool(network.layers) and _of_keras(network.layers[0], features)
    names = getattr(network, "input_names", None) or []
    if not names or isinstance(network.input, dict) or len(names) > 1:
        return False
    return names[0] not in features


def _of_keras(layer: tf_keras.layers.Layer, features: Collection[str]) -> bool:
    """Whether the first layer takes one tensor, as most of Keras' layers do, or is a model that does."""
    if isinstance(layer, tf_keras.Model):
        return _takes_one_tensor(layer, features)
    by_name = isinstance(layer, tf_keras.layers.DenseFeatures | tf_keras.layers.Lambda)
    return type(layer).__module__.startswith("tf_keras.") and not by_name
