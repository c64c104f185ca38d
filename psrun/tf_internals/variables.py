"""How TensorFlow's strategies wrap variables, and how variables are made without a value."""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.ps_values import AggregatingVariable, CachingVariable
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, UninitializedVariable

from psrun.tf_internals.replaced import replace, replaced
from psrun.tf_internals.tracing import FuncGraph

__all__ = [
    "CachingVariable",
    "ConvertibleToTensor",
    "UninitializedVariable",
    "add_what_is_assigned",
    "aggregate_alike",
    "aggregating",
    "assigned_by",
    "remote",
    "shards_of",
    "takes_scattered",
    "variables_of",
    "wrapped",
    "wrapping",
]

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")

# UninitializedVariable: a variable of a shape and type that has no value yet. `tf.Variable` takes no shape without a
# value (TensorFlow 2.21).


def shards_of(variables: Iterable[Any]) -> list[Any]:
    """The variables, those that are cut in shards as their shards."""
    return [shard for variable in variables for shard in getattr(variable, "variables", None) or [variable]]


def variables_of(network: Any) -> list[Any]:
    """The variables of a Keras model, those that are cut in shards whole.

    Keras lists the tables of adapted lookups among them, which have no name, no shape and no type (tf-keras 2.21).
    """
    return [each for each in network.variables if hasattr(each, "variables") or isinstance(each, tf.Variable)]


def remote(variables: Iterable[Any]) -> list[CachingVariable]:
    """The variables among these that a parameter server strategy made, shards one by one.

    The strategy wraps each of its variables in a `CachingVariable`, a type without a public name (TensorFlow 2.21).
    """
    return [shard for shard in shards_of(variables) if isinstance(shard, CachingVariable)]


def wrapped(variable: CachingVariable) -> Any:
    """The variable that `variable` wraps and passes every operation to (TensorFlow 2.21)."""
    return variable._v


@contextlib.contextmanager
def wrapping(variables: Iterable[CachingVariable], others: Iterable[Any]) -> Iterator[None]:
    """Variables of a parameter server strategy that pass on their operations to others (TensorFlow 2.21)."""

    def wrap(variable: CachingVariable, other: Any) -> contextlib.AbstractContextManager[None]:
        return replaced(variable, "_v", lambda _: other)

    with contextlib.ExitStack() as stack:
        for variable, other in zip(variables, others):
            stack.enter_context(wrap(variable, other))
        yield


class ConvertibleToTensor(abc.ABC):
    """A variable for a `CachingVariable` to wrap, which converts itself by a private method of the wrapped one.

    The public `tf.register_tensor_conversion_function` is for the outer type, which is TensorFlow's (TensorFlow 2.21).
    """

    @abc.abstractmethod
    def value(self) -> tf.Tensor:
        """The tensor to convert it to."""

    def _dense_var_to_tensor(self, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> tf.Tensor:
        return self.value()


def aggregating(variables: Iterable[Any]) -> list[Any]:
    """The variables among these that add up what replicas write, shards one by one.

    The type has no public name (TensorFlow 2.21).
    """
    return [shard for shard in shards_of(variables) if isinstance(shard, AggregatingVariable)]


def assigned_by(operations: Iterable[tf.Operation], variables: Iterable[Any]) -> list[Any]:
    """The variables, shards one by one, that operations of the graph that is being traced assign or add to.

    Operations within functions that these operations call are not looked at. Without a graph, as with
    `trainer.run_eagerly`, nothing is found.
    """
    written = [_outermost(each.inputs[0]) for each in operations if each.type in _ASSIGNMENTS]
    handles = {id(handle) for handle in written}
    return [shard for shard in shards_of(variables) if id(shard.handle) in handles]


def _outermost(handle: Any) -> Any:
    """The resource that a tensor of a traced function, or of a loop or branch of it, stands for (TensorFlow 2.21)."""
    graph = getattr(handle, "graph", None)
    while isinstance(graph, FuncGraph):
        outer = [external for external, internal in graph.captures if internal is handle]
        if not outer:
            break
        handle = outer[0]
        graph = graph.outer_graph
    return handle


def takes_scattered(variable: Any) -> bool:
    """Whether single elements can be added to a variable: not to one of several replicas (TensorFlow 2.21)."""
    own = wrapped(variable) if isinstance(variable, CachingVariable) else variable
    return isinstance(own, BaseResourceVariable) and not aggregating([own])


def add_what_is_assigned(variables: Iterable[Any]) -> None:
    """Lets each replica assign these variables what it has added to them: TensorFlow would sum their states."""
    for variable in aggregating(variables):
        if "assign" not in vars(variable):
            replace(variable, "assign", functools.partial(functools.partial, _assign_by_adding, variable))


def _assign_by_adding(variable: Any, assign: Callable[..., Any], value: Any, *arguments: Any, **options: Any) -> Any:
    if tf.distribute.in_cross_replica_context():
        return assign(value, *arguments, **options)
    return variable.assign_add(tf.convert_to_tensor(value, variable.dtype) - variable.read_value())


def aggregate_alike(variables: Iterable[Any]) -> None:
    """Makes it possible for all replicas to assign these variables, provided that they assign the same.

    tf-keras makes the variable of a learning rate that follows a schedule without a way to aggregate, and assigns it on
    each replica: TensorFlow refuses that (tf-keras 2.21).
    """
    for variable in aggregating(variables):
        if variable._aggregation == tf.VariableAggregation.NONE:
            replace(variable, "_aggregation", lambda _: tf.VariableAggregation.ONLY_FIRST_REPLICA)
