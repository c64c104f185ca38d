"""Names for code that is traced: they are TensorFlow's own objects, so a call costs nothing more (TensorFlow 2.21)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.eager import record
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph
from tensorflow.python.ops.resource_variable_ops import variable_accessed

__all__ = [
    "ControlFlowFuncGraph",
    "FuncGraph",
    "converted",
    "dataset_of",
    "in_outermost_graph",
    "not_inlined",
    "operations",
    "record_operation",
    "stop_recording",
    "unconverted",
    "variable_accessed",
]

# AutoGraph leaves psrun's functions as they are, as it does with TensorFlow's and Keras': converting them took a
# second before the first step. Only a function given directly to `tf.function` is converted; see `unconverted`
# (TensorFlow 2.21).
autograph_config.CONVERSION_RULES = (autograph_config.DoNotConvert("psrun"), *autograph_config.CONVERSION_RULES)

# FuncGraph, ControlFlowFuncGraph: the graph of a traced function, and of a branch or loop in it. Only their types
# say which of the two the default graph is, and only they have `outer_graph` and `captures`.

# variable_accessed: tells gradient tapes that a variable was read, as each variable does that is read the ordinary way.

# Within it no gradient tape records. Public is only the method of one tape, and here the tapes are the caller's.
stop_recording = record.stop_recording

# Records outputs, inputs and the gradient of an operation on all tapes. Public is only `tf.custom_gradient`, which
# calls its function then and there; what psrun records was computed before.
record_operation = record.record_operation


def operations(begin: int = 0) -> list[tf.Operation]:
    """The operations of the graph that is traced, from number `begin` on; empty without a trace."""
    if tf.executing_eagerly():
        return []
    return tf.compat.v1.get_default_graph().get_operations()[begin:]


def not_inlined(function: Callable[..., Any]) -> Any:
    """A `tf.function` that its callers call, rather than merge into themselves.

    Public is only `experimental_attributes`, without the attribute's name (TensorFlow 2.21).
    """
    return tf.function(function, experimental_attributes={"_noinline": True})


def unconverted(function: Callable[..., Any]) -> Any:
    """A `tf.function` of a function that AutoGraph does not convert; its loops are `tf.while_loop`, its branches
    `tf.cond`. Unlike with `autograph=False`, the user's functions that Keras calls in it are converted.
    """

    def call(*arguments: Any) -> Any:  # AutoGraph converts this one, once for all
        return function(*arguments)

    if function.__name__.isidentifier():  # AutoGraph would search the source of `call` for a lambda, and warn
        call.__name__ = function.__name__
    return tf.function(call)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function, converted by AutoGraph if it is called in a traced function of psrun.

    Functions that TensorFlow or Keras calls, such as in `Dataset.map` and in layers, do not need this.
    """
    autograph = tf.__internal__.autograph
    return function if tf.executing_eagerly() else autograph.tf_convert(function, autograph.control_status_ctx())


def dataset_of(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a user's function returns that makes a dataset; it is converted only if it branches on tensors itself.

    `Dataset.map` does not convert what a lambda calls if the lambda is part of a converted function (TensorFlow 2.21).
    """
    try:
        return method(*arguments, **options)
    except tf.errors.OperatorNotAllowedInGraphError:
        return converted(method)(*arguments, **options)


def in_outermost_graph(function: Callable[[], Any]) -> Any:
    """The result of `function`, called in the graph of the traced function, also within a branch or loop of it.

    A value that is captured when the function is called, such as the index of the worker, cannot be captured in a
    branch or loop (TensorFlow 2.21).
    """
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    with graph.as_default():
        return function()
