"""Stand-ins for the variables of parameter servers, which the steps of one closure meet in their place when traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.ps_values import CachingVariable  # in which the strategy wraps its variables
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph


def remote(variables: Iterable[tf.Variable]) -> list[CachingVariable]:
    """The variables among these that a parameter server strategy has made, shards one by one."""
    shards = [shard for variable in variables for shard in getattr(variable, "variables", None) or [variable]]
    return [shard for shard in shards if isinstance(shard, CachingVariable)]


class StandIn:
    """Takes what is asked of a variable; what a subclass does not answer, the variable does."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self._graph = tf.compat.v1.get_default_graph()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._variable, name)

    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        """What the variable is to be taken for where it is asked."""
        raise NotImplementedError

    def read_value(self, *_: Any, **__: Any) -> tf.Tensor:
        return self.value()

    def _dense_var_to_tensor(self, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> tf.Tensor:
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
def taking_over(variables: Sequence[CachingVariable], stand_ins: Sequence[StandIn]) -> Iterator[None]:
    """Puts stand-ins in the places of what the variables wrap."""
    before = [variable._v for variable in variables]
    for variable, stand_in in zip(variables, stand_ins):
        variable._v = stand_in
    try:
        yield
    finally:
        for variable, wrapped in zip(variables, before):
            variable._v = wrapped
