"""Variables that the steps of one closure keep on the worker, and write back once.

The step counter, the learning rate and the state of metrics are on parameter servers, where every step of every worker
would read and write them. Instead, a closure sums its additions on the worker, and sends one addition to the parameter
server. The sums over all workers are the same; a read in a closure does not include concurrent additions of other
workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Stage
from psrun.closures.variable_proxy import VariableProxy
from psrun.tf_internals.variables import remote, wrapped, wrapping


class CannotBeKept(Exception):
    """A branch, loop or nested function of the traced function changes variables that were to be worker-local."""


class WorkerLocalVariables(Stage):
    """The variables to keep on workers; those that are not on parameter servers are unaffected.

    Args:
      added_to: variables that are worker-local as long as a closure only adds to them.
      assigned: variables that a closure may also assign, because all workers assign the same value.
    """

    def __init__(self, added_to: Iterable[tf.Variable], assigned: Iterable[tf.Variable]) -> None:
        shared = remote(assigned)
        self._assigned = {id(variable) for variable in shared}
        self._variables = [*remote(added_to), *shared]

    @contextlib.contextmanager
    def unrolled(self, num_steps: int) -> Iterator[None]:
        """Traces steps on worker-local variables, and the write-back at the end.

        Raises:
          CannotBeKept: some variables cannot be worker-local; repeat the trace without them.
        """
        stand_ins = [_OnWorker(wrapped(variable), id(variable) in self._assigned) for variable in self._variables]
        with wrapping(self._variables, stand_ins):
            yield
        still_local = [variable for variable, stand_in in zip(self._variables, stand_ins) if not stand_in.left]
        if len(still_local) < len(stand_ins):
            self._variables = still_local
            raise CannotBeKept
        for stand_in in stand_ins:
            stand_in.write_back()


class _OnWorker(VariableProxy):
    """Sums additions on the worker.

    Attributes:
      left: whether the variable cannot be worker-local: a nested function, which cannot see the sum, changes or reads
        it; or a closure assigns it, and one of two concurrent assignments would be lost.
    """

    def __init__(self, variable: Any, may_be_assigned: bool) -> None:
        super().__init__(variable)
        self._may_be_assigned = may_be_assigned
        self._read = tf.identity(variable.read_value())  # pruned from the graph if nothing uses it
        self._added: Any = None
        self._assigned: Any = None
        self.left = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("scatter"):
            self.left = True
        return super().__getattr__(name)

    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        if not self._within():
            self.left = self.left or not tf.executing_eagerly()  # else another thread reads the variable
            return self.variable.value()
        if self._assigned is not None:
            return self._assigned
        return self._read if self._added is None else self._read + self._added

    def assign(self, value: Any, *arguments: Any, **options: Any) -> Any:
        if self._leaves(also=not self._may_be_assigned):
            return self.variable.assign(value, *arguments, **options)
        self._assigned = tf.convert_to_tensor(value, self.variable.dtype)
        self._added = None
        return self._assigned

    def assign_add(self, delta: Any, *arguments: Any, **options: Any) -> Any:
        return self._add(tf.convert_to_tensor(delta, self.variable.dtype), *arguments, **options)

    def assign_sub(self, delta: Any, *arguments: Any, **options: Any) -> Any:
        return self._add(-tf.convert_to_tensor(delta, self.variable.dtype), *arguments, **options)

    def _add(self, delta: tf.Tensor, *arguments: Any, **options: Any) -> Any:
        if self._leaves():
            return self.variable.assign_add(delta, *arguments, **options)
        if self._assigned is not None:
            self._assigned += delta
        else:
            self._added = tf.broadcast_to(delta, self.variable.shape) if self._added is None else self._added + delta
        return self.value()

    def _leaves(self, also: bool = False) -> bool:
        if tf.executing_eagerly():  # another thread
            return True
        self.left = self.left or also or tf.compat.v1.get_default_graph() is not self._graph
        return self.left

    def write_back(self) -> None:
        if self._assigned is not None:
            self.variable.assign(self._assigned, read_value=False)
        elif self._added is not None:
            self.variable.assign_add(self._added, read_value=False)
