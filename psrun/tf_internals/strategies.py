"""TensorFlow's strategies: how they create, wrap and place variables, their replicas and datasets."""

from __future__ import annotations

import abc
import contextlib
import functools
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended
from tensorflow.python.distribute.ps_values import AggregatingVariable, CachingVariable, DistributedTable
from tensorflow.python.eager import context
from tensorflow.python.ops import lookup_ops, resource_variable_ops
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from psrun.tf_internals.names import replace, replaced, require
from psrun.tf_internals.tracing import FuncGraph, in_outermost_graph

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")

_ONE_CPU = ("/device:CPU:0",)

# A variable of a shape and type that has no value yet. `tf.Variable` takes no shape without a value (TensorFlow 2.21).
UninitializedVariable = resource_variable_ops.UninitializedVariable


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


def disable_thread_spinning() -> None:
    """Makes idle threads sleep on the servers, when they run the steps of the coordinator of this process.

    Servers run that with the options of the coordinator's context, which no public option reaches. Where several
    servers share cores, threads that spin took 7 % of the time (TensorFlow 2.21).
    """
    calm = tf.compat.v1.ConfigProto.Experimental(disable_thread_spinning=True)
    replace(context.context(), "_config", lambda _: tf.compat.v1.ConfigProto(experimental=calm))


def name_tables_uniquely() -> None:
    """Gives lookup tables names that no other process gives.

    Workers keep the tables of a chief that has exited. TensorFlow names tables by numbers that restart in every
    process: the next chief's could meet another one's, "already initialized with different data". Initializers take no
    name (TensorFlow 2.21).
    """
    unique = property(lambda self: uuid.uuid4().hex)
    replace(lookup_ops.KeyValueTensorInitializer, "_shared_name", lambda _: unique)


def let_branches_look_up() -> None:
    """Lets the branches of a step look up in tables. `Model.fit` has such branches with several steps per execution.

    A step gets the handle of its worker's copy of a table when it is called, through a placeholder. TensorFlow makes it
    in the graph of the branch, which nobody calls with a value (TensorFlow 2.21).
    """
    handle = DistributedTable.resource_handle
    if getattr(handle.fget, "of_psrun", False):
        return

    def of_the_function(self: Any) -> Any:
        if tf.executing_eagerly():
            return handle.fget(self)
        return in_outermost_graph(functools.partial(handle.fget, self))

    of_the_function.of_psrun = True  # type: ignore[attr-defined]
    replace(DistributedTable, "resource_handle", lambda _: property(of_the_function))


def strategy_with_replicas(
    make: Callable[[], tf.distribute.ParameterServerStrategy], devices: Callable[[], tuple[str, ...]]
) -> tf.distribute.ParameterServerStrategy:
    """A strategy whose workers have a replica on each of `devices`, rather than on each GPU that they have.

    TensorFlow counts the GPUs of workers when a strategy is made, and knows no other number and no other devices
    (TensorFlow 2.21).

    Args:
      make: makes the strategy, connected to its cluster.
      devices: called once the cluster is connected to; the names of the devices within a worker, one or more.
    """
    device_names: list[tuple[str, ...]] = []

    def set_num_gpus(extended: Any) -> None:
        device_names.append(devices())
        # 0 stands for one replica on the CPU, which needs no variables that add up what replicas write.
        extended._num_gpus_per_worker = 0 if device_names[0] == _ONE_CPU else len(device_names[0])

    with replaced(ParameterServerStrategyV2Extended, "_set_num_gpus", lambda _: set_num_gpus):
        strategy = make()
    (names,) = device_names
    extended = strategy.extended
    on_devices = {"worker_devices": property(lambda self: names)}
    replace(extended, "__class__", lambda kind: type(kind.__name__, (kind,), on_devices))
    if strategy.num_replicas_in_sync != len(names) or extended.worker_devices != names:
        raise RuntimeError(f"TensorFlow {tf.__version__} decides on the replicas of workers in another way than 2.21")
    return strategy


class VariableCreation:
    """How a parameter server strategy creates variables.

    It puts the next shard on server `_variable_count % _num_ps`. The count is set in `_create_variable`, which all
    scopes of the strategy end in; the public `variable_creator_scope` would have to be entered again within each of
    them, also those that Keras enters (TensorFlow 2.21).

    Attributes:
      create: takes the next creator and the arguments of a variable; returns the variable.
      num_ps: how many parameter servers there are.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy) -> None:
        self._extended = strategy.extended
        require(self._extended, "_create_variable", "_variable_count")
        self.create = self._extended._create_variable
        self.num_ps: int = self._extended._num_ps

    @property
    def partitioner(self) -> Callable[..., list[int]] | None:
        """Takes shape and dtype of a variable, returns its number of shards on each axis; None where none is cut."""
        return self._extended._variable_partitioner

    def create_whole(self, next_creator: Any, **kwargs: Any) -> Any:
        """As `create`, without shards, whatever the partitioner."""
        with replaced(self._extended, "_variable_partitioner", lambda _: None):
            return self.create(next_creator, **kwargs)

    def set_next_server(self, index: int) -> None:
        """Puts the next shard, or variable without shards, on that server; those after it on the servers after it."""
        replace(self._extended, "_variable_count", lambda _: index)

    def replace(self, create: Callable[..., tf.Variable]) -> None:
        """Makes the strategy create its variables by `create`, which takes what the one of before takes."""
        replace(self._extended, "_create_variable", lambda _: create)


def num_parameter_servers() -> int:
    """Parameter servers of the current strategy; 1 where it has none."""
    extended = tf.distribute.get_strategy().extended
    return extended._num_ps if isinstance(extended, ParameterServerStrategyV2Extended) else 1


@contextlib.contextmanager
def cut_over_all_servers() -> Iterator[None]:
    """Cuts variables that are created within it in one shard for each parameter server, whatever the partitioner.

    The partitioner is an argument of the strategy, for all variables (TensorFlow 2.21).
    """
    extended = tf.distribute.get_strategy().extended
    if not isinstance(extended, ParameterServerStrategyV2Extended):
        yield
        return
    one_each = tf.distribute.experimental.partitioners.FixedShardsPartitioner(extended._num_ps)
    with replaced(extended, "_variable_partitioner", lambda _: one_each):
        yield


def iterator_spec(iterator: Any) -> Any:
    """The type that functions on workers take a coordinator's per-worker iterator for; it is the same for all workers.

    `tf.type_spec_from_value` knows no values of workers (TensorFlow 2.21).
    """
    return iterator._values[0]._type_spec


def share_files(dataset: tf.data.Dataset, num_workers: int) -> tf.data.Dataset:
    """The part of a dataset that the first of several workers reads, by the dataset's policy of sharing.

    A strategy does this when it distributes a dataset. There is no public function for it (TensorFlow 2.21).

    Raises:
      tf.errors.NotFoundError: files are to be shared, and the dataset does not begin with files.
      tf.errors.InvalidArgumentError: when read: there are fewer files than workers.
    """
    return distribute._AutoShardDataset(dataset, num_workers, 0)
