"""What the layers of a Keras 3 model assign to its variables in a call. Imports Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from psrun.errors import ConfigError, Problem
from psrun.keras3 import internals
from psrun.tf_internals.keras import as_raised


class Assignments(keras.StatelessScope):
    """In this context of a call, layers read and assign tensors; `write` changes the variables.

    Args:
      weights: the variables that a call may assign.
      values: pairs of a variable and its value, read for the call.
    """

    def __init__(self, weights: Sequence[Any], values: Sequence[tuple[Any, tf.Tensor]]) -> None:
        super().__init__(values, collect_losses=True)
        self._weights = {id(variable) for variable in weights}
        self._before = {id(variable): value for variable, value in values}
        self._assigned: dict[int, Any] = {}
        self._problems: dict[str, Problem] = {}
        self._graph = tf.compat.v1.get_default_graph()

    def add_update(self, update: tuple[Any, tf.Tensor]) -> None:
        """Takes the place of an assignment."""
        variable, value = update
        reason = self._refused(variable)
        if reason is not None:
            self._problems[variable.path] = Problem("model", f"{variable.path} {reason}")
            return
        if id(variable) not in self._before:  # a table of which calls look up rows
            self._before[id(variable)] = tf.convert_to_tensor(internals.value_of(variable))
        self._assigned[id(variable)] = variable
        super().add_update((variable, _assigned(self._before[id(variable)], value)))

    def get_current_value(self, variable: Any) -> Any:
        """The value that a layer reads; None for a variable that is no weight of the model."""
        value = super().get_current_value(variable)
        if value is None and id(variable) in self._weights:
            return tf.convert_to_tensor(internals.value_of(variable))
        return value

    def assigned_value(self, variable: Any) -> Any:
        """The value that a layer assigned in this call; None if no layer did."""
        return super().get_current_value(variable) if id(variable) in self._assigned else None

    def _refused(self, variable: Any) -> str | None:
        """Why psrun cannot do an assignment; None if it can."""
        if id(variable) not in self._weights:
            return (
                "is assigned in a call, but is no weight of the model, so that no checkpoint would have it; create it "
                "with add_weight of the layer that assigns it"
            )
        if tf.compat.v1.get_default_graph() is not self._graph:
            return (
                "is assigned within a branch or a loop (keras.ops.cond, keras.ops.while_loop), which its value does "
                "not leave; return the new value from it, and assign it afterwards"
            )
        return None

    def write(self) -> None:
        """Changes the variables that were assigned.

        Raises:
          ConfigError: one of them cannot be assigned.
        """
        if self._problems:
            raise as_raised(ConfigError(self._problems.values()))
        for variable in self._assigned.values():
            own = internals.value_of(variable)
            after = self.get_current_value(variable)
            if variable.trainable or own.dtype == tf.bool:
                own.assign(tf.cast(after, own.dtype))
            else:
                _add(own, self._before[id(variable)], after)


def _add(variable: Any, before: tf.Tensor, after: tf.Tensor) -> None:
    """Changes a statistic by the difference: an assignment would undo what other workers did in the meantime."""
    variable.assign_add(tf.cast(after, before.dtype) - before)


@tf.custom_gradient
def _assigned(read: tf.Tensor, value: tf.Tensor) -> Any:
    """The assigned value, with the gradient of a variable that is read: Keras differentiates at the assigned value."""
    return tf.identity(value), lambda gradient: (gradient, None)
