"""The first values of a stack, table by table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.layers.layout import Block, StackLayout
from psrun.tf_internals.tracing import converted

# Their values do not depend on the shape of the table, so that one call makes those of several.
_ALIKE = tuple(
    getattr(tf_keras.initializers, name)
    for name in ("Constant", "Ones", "RandomNormal", "RandomUniform", "TruncatedNormal", "Zeros")
)


def of(layout: StackLayout, own: Sequence[Any]) -> Any:
    """The initializer of a stack and of its shards, called as Keras calls one.

    Args:
      own: the initializer of each table.
    """
    alike = all(map(_is_alike, own)) and len({repr(tf_keras.initializers.serialize(each)) for each in own}) == 1
    return own[0] if alike else _Initializer(layout, own)


def _is_alike(initializer: Any) -> bool:
    whole = np.ndim(getattr(initializer, "value", 0)) > 0  # the values of one table
    return type(initializer) in _ALIKE and not whole


class _Initializer:
    """First values of a stack whose tables begin in different ways.

    Called as Keras' initializers are; for one shard with `partition_shape` and `partition_offset`.
    """

    def __init__(self, layout: StackLayout, own: Sequence[Any]) -> None:
        self._layout, self._own = layout, own

    def __call__(self, shape: Any, dtype: Any = None, **options: Any) -> tf.Tensor:
        layout = self._layout
        offset = options.get("partition_offset")
        only = None if offset is None else int(offset[0]) // layout.shard_rows
        shards = range(layout.num_shards) if only is None else [only]
        return tf.concat([self._shard(index, int(shape[1]), dtype) for index in shards], 0)

    def _shard(self, index: int, dim: int, dtype: Any) -> tf.Tensor:
        parts = []
        for table, initializer in enumerate(self._own):
            block = next((each for each in self._layout.blocks(table) if each.shard == index), None)
            num_rows = 0 if block is None else block.num_rows
            if block is not None:
                parts.append(_part(initializer, (self._layout.table_rows[table], dim), dtype, block))
            unused = self._layout.block_rows(table) - num_rows
            if unused:
                parts.append(tf.zeros([unused, dim], dtype or tf.float32))
        return tf.concat(parts, 0)


def _part(initializer: Any, shape: tuple[int, int], dtype: Any, block: Block) -> tf.Tensor:
    """The first values of a block of a table of this shape.

    An initializer does not say whether it can make a part. As TensorFlow does for variables in shards, this requests
    one; if it fails or makes the whole table, the part is cut out.
    """
    part, make = (block.num_rows, shape[1]), converted(initializer)
    try:
        values = make(shape, dtype=dtype, partition_shape=part, partition_offset=(block.first, 0))
    except (TypeError, ValueError):
        values = make(shape, dtype=dtype)
    return values if tuple(values.shape) == part else values[block.first : block.first + block.num_rows]
