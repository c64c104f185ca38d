"""Creates large variables on parameter servers without a second copy of the initial value.

TensorFlow computes the initial value op by op and then assigns it: meanwhile a parameter server holds two to three
times the bytes of its shard, and does not free them. Here the variable is created empty, and one function on its
parameter server computes the value in place.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from psrun.tf_internals.variables import UninitializedVariable

_LARGE_BYTES = 1 << 20


def in_place() -> contextlib.AbstractContextManager[None]:
    """Creates large variables in this way. Enter it before the strategy's scope, which decides the placement first."""
    return tf.variable_creator_scope(_create)


def _create(next_creator: Any, **kwargs: Any) -> tf.Variable:
    value = kwargs.get("initial_value")
    if not callable(value) or not tf.executing_eagerly() or "/job:ps" not in _device():
        return next_creator(**kwargs)
    shape = kwargs.get("shape")
    dtype = kwargs.get("dtype")
    if shape is not None and dtype is not None and not _large(tf.TensorShape(shape), tf.as_dtype(dtype)):
        return next_creator(**kwargs)
    try:
        traced = tf.function(lambda: tf.convert_to_tensor(value(), dtype)).get_concrete_function()
    except Exception:  # any error of an initializer that does not work in a function
        return next_creator(**kwargs)
    output = traced.structured_outputs
    # Constant values would become part of the function.
    if not _large(output.shape, output.dtype) or traced.graph.as_graph_def().ByteSize() > _LARGE_BYTES:
        return next_creator(**kwargs)
    options = (
        "name",
        "trainable",
        "distribute_strategy",
        "synchronization",
        "aggregation",
        "constraint",
        "caching_device",
    )
    variable = UninitializedVariable(
        shape=output.shape, dtype=output.dtype, **{name: kwargs[name] for name in options if name in kwargs}
    )
    with tf.device(variable.device):
        tf.function(lambda: variable.assign(value(), read_value=False) and None)()
    return variable


def _large(shape: tf.TensorShape, dtype: tf.DType) -> bool:
    return bool(shape.is_fully_defined() and shape.num_elements() * dtype.size >= _LARGE_BYTES)


def _device() -> str:
    """The device of a variable that is created now."""
    with tf.init_scope():
        return tf.zeros([]).device
