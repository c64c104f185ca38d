"""Stand-ins for the variables of parameter servers, which the steps of one closure meet in their place when traced."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from psrun.tf_internals.tracing import ControlFlowFuncGraph
from psrun.tf_internals.variables import CachingVariable, ConvertibleToTensor, replace_wrapped, wrapped


class VariableProxy(ConvertibleToTensor):
    """Takes what is asked of a variable; what a subclass does not answer, the variable does."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self._graph = tf.compat.v1.get_default_graph()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.variable, name)

    @abc.abstractmethod
    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        """The value of the variable in the graph that asks for it."""

    def read_value(self, *_: Any, **__: Any) -> tf.Tensor:
        return self.value()

    def _within(self) -> bool:
        """Whether this is asked in the traced function or a branch or loop of it, not in a function that it calls.

        Such a function is traced once, and would hold on to the tensors of that time.
        """
        graph = tf.compat.v1.get_default_graph()
        while graph is not self._graph and isinstance(graph, ControlFlowFuncGraph):
            graph = graph.outer_graph
        return graph is self._graph


@contextlib.contextmanager
def taking_over(variables: Sequence[CachingVariable], stand_ins: Sequence[VariableProxy]) -> Iterator[None]:
    """Puts stand-ins in the places of what the variables wrap."""
    before = [wrapped(variable) for variable in variables]
    for variable, stand_in in zip(variables, stand_ins):
        replace_wrapped(variable, stand_in)
    try:
        yield
    finally:
        for variable, own in zip(variables, before):
            replace_wrapped(variable, own)
