"""Which layer of Keras, and which feature, an id belongs to that is outside of a table."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import Feature
from psrun.errors import DataError
from psrun.layers.adapter import AdaptedModel
from psrun.tf_internals import keras
from psrun.tf_internals.messages import outside_lookup


def message_in(error: str, network: tf_keras.Model, features: Mapping[str, Feature]) -> str | None:
    """The layer, its features and the id, in the text of TensorFlow's error; None for other errors.

    Embedding layers of psrun report the id themselves.
    """
    found = outside_lookup(error)
    if found is None:
        return None
    node, number = found
    layer = _layer(node, network)
    if layer is None:
        return None
    names = _features(layer, features)
    of_features = f" (feature {', '.join(names)})" if names else ""
    num_rows = getattr(layer, "input_dim", None)
    size = "" if num_rows is None else f" of {num_rows:,} rows (ids from 0 to {num_rows - 1:,})"
    shown = "an id" if number is None else f"the id {number}"
    return f"the layer {layer.name}{of_features} got {shown} outside of its table{size}"


@contextlib.contextmanager
def named(network: tf_keras.Model, features: Mapping[str, Feature]) -> Iterator[None]:
    """Raises DataError for an id outside of a table of the network, in this process."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        message = message_in(str(error), network, features)
        if message is None:
            raise
        raise DataError(message) from error


def _layer(node: str, network: tf_keras.Model) -> Any:
    """The innermost layer in the path of a node; None if the path has none."""
    known = network.own_layers() if isinstance(network, AdaptedModel) else keras.layers_within(network)
    layers = {layer.name: layer for layer in known}
    for scope in reversed(node.split("/")):
        for name in (scope, re.sub(r"_\d+$", "", scope)):  # a layer that is traced again has a number in its scope
            if name in layers:
                return layers[name]
    return None


def _features(layer: Any, features: Mapping[str, Feature]) -> list[str]:
    """The features that a layer of a functional model is called on; else the only feature of integers."""
    nodes = getattr(layer, "inbound_nodes", ())
    called_on = [tensor for node in nodes for tensor in getattr(node, "keras_inputs", ())]
    sources = {source.name for tensor in called_on for source in tf_keras.utils.get_source_inputs(tensor)}
    named = sorted(sources & {*features})
    if named:
        return named
    integers = [name for name, feature in features.items() if feature.dtype.is_integer]
    return integers if len(integers) == 1 else []
