"""Initial values that do not depend on how a variable is cut: a shard is part of what the whole would be."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.keras3 import internals
from psrun.tf_internals.tracing import converted

BLOCK_ROWS = 8192
# Initializers of Keras 3 whose values do not depend on the shape.
_ALIKE = ("RandomNormal", "RandomUniform", "TruncatedNormal")
_AGGREGATIONS = {
    "none": tf.VariableAggregation.NONE,
    "sum": tf.VariableAggregation.SUM,
    "mean": tf.VariableAggregation.MEAN,
    "only_first_replica": tf.VariableAggregation.ONLY_FIRST_REPLICA,
}


class Slices:
    """Makes the whole value by an initializer of Keras 3, or any function of shape and dtype, and takes rows of it.

    It is called as an initializer of tf-keras: for a shard with `partition_shape` and `partition_offset`.
    """

    variable_name: str | None = None

    def __init__(self, initializer: Any) -> None:
        # Others would give each shard different values.
        self._whole = _computed if _repeats(initializer) else functools.cache(_computed_eagerly)
        self._initializer = initializer

    def __call__(
        self, shape: Any, dtype: Any = None, partition_shape: Any = None, partition_offset: Any = None
    ) -> tf.Tensor:
        whole = tuple(shape)
        dtype = tf.as_dtype(dtype or tf.float32)
        if partition_shape is None:
            return self._rows(whole, dtype, 0, whole[0] if whole else 1)
        return self._rows(whole, dtype, int(partition_offset[0]), int(partition_shape[0]))

    def _rows(self, shape: tuple[int, ...], dtype: tf.DType, first: int, num_rows: int) -> tf.Tensor:
        whole = self._whole(self._initializer, shape, dtype)
        return whole[first : first + num_rows] if shape and num_rows < shape[0] else whole


class Blocks(Slices):
    """Makes random rows by blocks of `BLOCK_ROWS`, each with a seed, so that no shard computes the rows of others.

    It takes slices of initializers whose values depend on the shape.
    """

    def _rows(self, shape: tuple[int, ...], dtype: tf.DType, first: int, num_rows: int) -> tf.Tensor:
        alike = type(self._initializer).__name__ in _ALIKE and _repeats(self._initializer)
        if not alike or shape[0] <= BLOCK_ROWS:
            return super()._rows(shape, dtype, first, num_rows)
        begin = first // BLOCK_ROWS
        end = -(-(first + num_rows) // BLOCK_ROWS)

        def block(number: tf.Tensor) -> tf.Tensor:
            initializer = copy.copy(self._initializer)
            initializer.seed = internals.FixedSeed(tf.stack([self._initializer.seed, number]))
            return initializer((BLOCK_ROWS, *shape[1:]), dtype=dtype.name)

        blocks = tf.map_fn(block, tf.range(begin, end), fn_output_signature=dtype)
        rows = tf.reshape(blocks, [(end - begin) * BLOCK_ROWS, *shape[1:]])
        offset = first - begin * BLOCK_ROWS
        return rows[offset : offset + num_rows]


class OfTable(Slices):
    """Takes rows from an initializer of psrun's layers, and names the variable as they do."""

    def __init__(self, initializer: Callable[..., Any], variable_name: str) -> None:
        self._initializer = initializer
        self.variable_name = variable_name

    def _rows(self, shape: tuple[int, ...], dtype: tf.DType, first: int, num_rows: int) -> tf.Tensor:
        if num_rows == shape[0]:
            return converted(self._initializer)(shape, dtype=dtype)
        partition = {"partition_shape": (num_rows, *shape[1:]), "partition_offset": (first, *[0] * len(shape[1:]))}
        return converted(self._initializer)(shape, dtype=dtype, **partition)


def create(variable: Any, initializer: Callable[..., Any], name: str) -> tf.Variable:
    """The TensorFlow variable of a Keras 3 variable, made by the strategy of the scope."""
    shape = tuple(variable.shape)
    dtype = tf.as_dtype(variable.dtype)
    rows = initializer if isinstance(initializer, Slices) else Slices(initializer)

    def value(partition_shape: Any = None, partition_offset: Any = None) -> tf.Tensor:
        return rows(shape, dtype, partition_shape, partition_offset)

    scope, _, last = (rows.variable_name or name).rpartition("/")
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


def _computed(initializer: Callable[..., Any], shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    return tf.convert_to_tensor(initializer(shape, dtype=dtype.name), dtype)


def _computed_eagerly(initializer: Callable[..., Any], shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    with tf.init_scope():
        return _computed(initializer, shape, dtype)


def _repeats(initializer: Any) -> bool:
    """Whether each call of an initializer returns the same values: one of Keras 3 with a number as its seed."""
    of_keras = type(initializer).__module__.partition(".")[0] == "keras"
    return of_keras and isinstance(getattr(initializer, "seed", 0), int)
