"""Checks of values within a step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def check(condition: tf.Tensor, *data: Any) -> list[tf.Operation]:
    """The check of a graph, for `tf.control_dependencies`; eagerly it is done at once, and the list is empty.

    `tf.debugging.Assert` would add a branch, and so another function call.

    Args:
      data: shown in the error, a message first.

    Raises:
      tf.errors.InvalidArgumentError: when run: the condition is false.
    """
    operation = tf.raw_ops.Assert(condition=condition, data=list(data))
    return [] if operation is None else [operation]
