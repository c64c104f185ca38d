"""Variables of one parameter server that travel together: one message fetches them, and one pushes their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from psrun.closures.variable_proxy import VariableProxy
from psrun.optimizers import late_gradients
from psrun.tf_internals.tracing import record_operation, stop_recording, variable_accessed
from psrun.tf_internals.variables import wrapped

GradientsAndVariables = Sequence[tuple[Any, tf.Variable]]


class Bundle:
    """Variables of one type on one parameter server."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables
        self.stand_ins: list[Fetched] = []
        self._sizes = [math.prod(variable.shape) for variable in variables]
        self._read: list[tf.Tensor] = []  # the fetched values
        self._summed: list[tf.Tensor] = []  # parts, one after the other
        self._pushed: list[int] = []
        self.device, self.dtype, self.num_values = variables[0].device, variables[0].dtype, sum(self._sizes)

    @property
    def is_empty(self) -> bool:
        """Whether there are no gradients to push."""
        return not self._summed

    def begin(self) -> None:
        self.stand_ins, self._summed = [Fetched(wrapped(variable)) for variable in self.variables], []

    def fetch(self, carried: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """Reads all variables, for the steps until the next call.

        Args:
          carried: numbers on the parameter server that travel with the variables: shape (1,) each.

        Returns:
          These numbers, on the worker.
        """
        with stop_recording():
            with tf.device(self.device):
                values = [tf.reshape(stand_in.variable.read_value(), [-1]) for stand_in in self.stand_ins]
                together = tf.concat([*values, *carried], 0)
            parts = tf.split(tf.identity(together), [*self._sizes, *(1 for _ in carried)])
            self._read = parts[: len(self._sizes)]
            for stand_in, part in zip(self.stand_ins, self._read):
                stand_in.fetched = tf.reshape(part, stand_in.variable.shape)
            return parts[len(self._sizes) :]

    def take(self, grads_and_vars: GradientsAndVariables) -> list[tuple[Any, tf.Variable]]:
        """Adds up the gradients of its variables; returns the others."""
        places = {id(variable): place for place, variable in enumerate(self.variables)}
        own: list[Any] = [None] * len(places)
        others = []
        for gradient, variable in grads_and_vars:
            place = places.get(id(variable))
            if place is None or isinstance(gradient, tf.IndexedSlices):
                others.append((gradient, variable))
            else:
                own[place] = gradient
        if any(gradient is not None for gradient in own):
            flat = [
                tf.zeros([size], variable.dtype) if gradient is None else tf.reshape(gradient, [-1])
                for gradient, variable, size in zip(own, self.variables, self._sizes)
            ]
            self._pushed = [place for place, gradient in enumerate(own) if gradient is not None]
            self._summed = flat if self.is_empty else [tf.concat(self._summed, 0) + tf.concat(flat, 0)]
        return others

    def push(
        self, carried: Sequence[tf.Tensor], compensation: float
    ) -> tuple[list[tuple[tf.Tensor, tf.Variable]], list[tf.Tensor]]:
        """The summed gradients, on the parameter server.

        Args:
          carried: numbers on the worker that travel with them: shape (1,) each.
          compensation: the factor of `late_gradients.compensated`; if it is not 0, the fetched values travel, too.

        Returns:
          Pairs of gradient and variable, and the numbers.
        """
        if self.is_empty:
            return [], []
        read = self._read if compensation else []
        together = tf.concat([*self._summed, *(tf.cast(number, self.dtype) for number in carried), *read], 0)
        self._summed = []
        with tf.device(self.device):
            sizes = [*self._sizes, *(1 for _ in carried)]
            received = tf.identity(together)
            parts = tf.split(received, [*sizes, *(self._sizes if read else ())])
            gradients = [tf.reshape(part, variable.shape) for part, variable in zip(parts, self.variables)]
            for place, late in enumerate(parts[len(sizes) :]):
                with tf.control_dependencies([received]):  # else read when the closure starts
                    now = self.stand_ins[place].variable.read_value()
                values = gradients[place], now, tf.reshape(late, now.shape)
                gradients[place] = late_gradients.compensated(*values, compensation)
            pairs = [(gradients[place], self.variables[place]) for place in self._pushed]
            return pairs, parts[len(self._sizes) : len(sizes)]


class Fetched(VariableProxy):
    """Gives the value that was fetched; a gradient for it is one for the variable.

    Attributes:
      fetched: None once something else than the optimizer has changed the variable.
      updating: whether the optimizer is at work, which reads what the parameter server has.
    """

    fetched: Any = None
    updating = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("assign", "scatter")) and not self.updating:
            self.fetched = None
        return super().__getattr__(name)

    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        # In a loop or a branch its gradient would be one of the fetched tensor, and not of the variable.
        if self.fetched is None or self.updating or tf.compat.v1.get_default_graph() is not self._graph:
            return self.variable.value()
        variable_accessed(self.variable)
        with stop_recording():
            tensor = tf.identity(self.fetched)
        record_operation("ReadVariableOp", [tensor], [self.variable.handle], lambda gradient: [gradient])
        return tensor
