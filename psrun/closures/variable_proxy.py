"""Proxies that replace variables of parameter servers while the steps of a closure are traced."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from psrun.tf_internals.tracing import ControlFlowFuncGraph
from psrun.tf_internals.variables import ConvertibleToTensor


class VariableProxy(ConvertibleToTensor):
    """Replaces a variable; forwards whatever a subclass does not implement."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self._graph = tf.compat.v1.get_default_graph()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.variable, name)

    @abc.abstractmethod
    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        """The value of the variable in the current graph."""

    def read_value(self, *_: Any, **__: Any) -> tf.Tensor:
        return self.value()

    def _within(self) -> bool:
        """Whether the current graph is the traced function, or a branch or loop of it, not a function that it calls.

        A called function is traced once, and would keep tensors of that trace.
        """
        graph = tf.compat.v1.get_default_graph()
        while graph is not self._graph and isinstance(graph, ControlFlowFuncGraph):
            graph = graph.outer_graph
        return graph is self._graph
