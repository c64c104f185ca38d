"""Initial values that do not depend on how a variable is cut: a shard is part of what the whole would be."""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.tf_internals.tracing import converted


class InParts(abc.ABC):
    """An initializer that makes contiguous rows of a variable.

    Attributes:
      variable_name: for the variable; None for the usual one.
    """

    variable_name: str | None = None

    @abc.abstractmethod
    def part(self, shape: tuple[int, ...], dtype: tf.DType, first: int, num_rows: int) -> tf.Tensor:
        """Rows `first` to `first + num_rows` of a variable of this shape."""

    def __call__(self, shape: Any, dtype: Any = None, **options: Any) -> tf.Tensor:
        """As tf-keras' initializers, which get `partition_shape` and `partition_offset` for a shard."""
        whole, dtype = tuple(shape), tf.as_dtype(dtype or tf.float32)
        if "partition_shape" in options:
            return self.part(whole, dtype, int(options["partition_offset"][0]), int(options["partition_shape"][0]))
        return self.part(whole, dtype, 0, whole[0] if whole else 1)


class Slices(InParts):
    """Makes the whole value, and takes rows of it.

    Args:
      initializer: of Keras 3, or any function of shape and dtype.
    """

    def __init__(self, initializer: Any) -> None:
        # Others would give each shard different values.
        self._whole = _computed if _repeats(initializer) else functools.cache(_computed_eagerly)
        self._initializer = initializer

    def part(self, shape: tuple[int, ...], dtype: tf.DType, first: int, num_rows: int) -> tf.Tensor:
        whole = self._whole(self._initializer, shape, dtype)
        return whole[first : first + num_rows] if shape and num_rows < shape[0] else whole


class Blocks(Slices):
    """Makes random rows by blocks of `BLOCK_ROWS`, each with a seed: no shard computes the rows of others.

    It is for initializers whose values do not depend on the shape, and takes slices of other ones.

    Args:
      initializer: of Keras 3.
      seeded: makes what Keras 3 takes as a seed, from a tensor of two numbers.
    """

    BLOCK_ROWS = 8192
    _ALIKE = ("RandomNormal", "RandomUniform", "TruncatedNormal")

    def __init__(self, initializer: Any, seeded: Callable[[tf.Tensor], Any]) -> None:
        super().__init__(initializer)
        self._seeded = seeded

    def part(self, shape: tuple[int, ...], dtype: tf.DType, first: int, num_rows: int) -> tf.Tensor:
        alike = type(self._initializer).__name__ in self._ALIKE and _repeats(self._initializer)
        if not alike or shape[0] <= self.BLOCK_ROWS:
            return super().part(shape, dtype, first, num_rows)
        begin, end = first // self.BLOCK_ROWS, -(-(first + num_rows) // self.BLOCK_ROWS)

        def block(number: tf.Tensor) -> tf.Tensor:
            initializer = copy.copy(self._initializer)
            initializer.seed = self._seeded(tf.stack([self._initializer.seed, number]))
            return initializer((self.BLOCK_ROWS, *shape[1:]), dtype=dtype.name)

        blocks = tf.map_fn(block, tf.range(begin, end), fn_output_signature=dtype)
        rows = tf.reshape(blocks, [(end - begin) * self.BLOCK_ROWS, *shape[1:]])
        offset = first - begin * self.BLOCK_ROWS
        return rows[offset : offset + num_rows]


class Partitioned(InParts):
    """An initializer that takes `partition_shape` and `partition_offset`, as those of tf-keras do."""

    def __init__(self, initializer: Callable[..., Any], variable_name: str | None = None) -> None:
        self._initializer, self.variable_name = initializer, variable_name

    def part(self, shape: tuple[int, ...], dtype: tf.DType, first: int, num_rows: int) -> tf.Tensor:
        if num_rows == shape[0]:
            return converted(self._initializer)(shape, dtype=dtype)
        partition = {"partition_shape": (num_rows, *shape[1:]), "partition_offset": (first, *[0] * len(shape[1:]))}
        return converted(self._initializer)(shape, dtype=dtype, **partition)


def _computed(initializer: Callable[..., Any], shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    return tf.convert_to_tensor(initializer(shape, dtype=dtype.name), dtype)


def _computed_eagerly(initializer: Callable[..., Any], shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    with tf.init_scope():
        return _computed(initializer, shape, dtype)


def _repeats(initializer: Any) -> bool:
    """Whether each call of an initializer returns the same values: one of Keras 3 with a number as its seed."""
    of_keras = type(initializer).__module__.partition(".")[0] == "keras"
    return of_keras and isinstance(getattr(initializer, "seed", 0), int)
