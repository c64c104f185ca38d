"""Values for specs, where only their types and shapes matter."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def any_number(examples: Any) -> tf.TypeSpec:
    """The spec of a batch for any number of examples."""
    shape = [None, *examples.shape[1:]]
    if isinstance(examples, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, examples.dtype, examples.ragged_rank, examples.row_splits_dtype)
    return tf.TensorSpec(shape, examples.dtype)


def zeros(
    spec: tf.TensorSpec | tf.RaggedTensorSpec, batch_size: int = 1, num_values: int = 1
) -> tf.Tensor | tf.RaggedTensor:
    """Zeros, or empty strings, for a spec with the batch as first axis; lists, and other axes of unknown length, have
    `num_values` values.
    """
    if isinstance(spec, tf.RaggedTensorSpec):
        values = zeros(tf.TensorSpec([None, *spec.shape[2:]], spec.dtype), batch_size * num_values)
        splits = num_values * tf.range(batch_size + 1, dtype=spec.row_splits_dtype)
        return tf.RaggedTensor.from_row_splits(values, splits)
    shape = [batch_size, *(num_values if size is None else size for size in spec.shape[1:])]
    return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)


def spec_of(value: Any) -> tf.TypeSpec:
    """The spec of a value, or the spec that it is: a traced function has specs of its tensors, but no others."""
    return value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
