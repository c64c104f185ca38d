"""How a strategy makes the variables of Keras 3 models: with equal values on every layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.keras3.row_blocks import InParts, Slices

_AGGREGATIONS = {
    "none": tf.VariableAggregation.NONE,
    "sum": tf.VariableAggregation.SUM,
    "mean": tf.VariableAggregation.MEAN,
    "only_first_replica": tf.VariableAggregation.ONLY_FIRST_REPLICA,
}


def create(variable: Any, initializer: Callable[..., Any], name: str) -> tf.Variable:
    """The TensorFlow variable of a Keras 3 variable; see `psrun.keras3.internals.Creator`."""
    shape, dtype = tuple(variable.shape), tf.as_dtype(variable.dtype)
    parts = initializer if isinstance(initializer, InParts) else Slices(initializer)

    def value(partition_shape: Any = None, partition_offset: Any = None) -> tf.Tensor:
        if partition_shape is None:
            return parts.part(shape, dtype, 0, shape[0] if shape else 1)
        return parts.part(shape, dtype, int(partition_offset[0]), int(partition_shape[0]))

    scope, _, last = (parts.variable_name or name).rpartition("/")
    # A scope that ends in a slash is taken as it is: Keras has opened others.
    with tf.init_scope(), tf.name_scope(f"{scope}/") if scope else tf.compat.v1.name_scope(None):
        return tf.Variable(
            value, shape=shape, dtype=dtype, trainable=variable.trainable, name=last, **_merging(variable, dtype)
        )


def _merging(variable: Any, dtype: tf.DType) -> dict[str, Any]:
    """How replicas that update a variable together do so: as in tf-keras, statistics are averaged.

    Keras 3 does not say it, and TensorFlow would refuse the update.
    """
    if variable.trainable or variable.aggregation != "none":
        return {"aggregation": _AGGREGATIONS[variable.aggregation]}
    merge = tf.VariableAggregation.MEAN if dtype.is_floating else tf.VariableAggregation.ONLY_FIRST_REPLICA
    return {"aggregation": merge, "synchronization": tf.VariableSynchronization.ON_READ}
