"""Changes to TensorFlow's servers, strategies and coordinator."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2
from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended
from tensorflow.python.distribute.ps_values import DistributedTable
from tensorflow.python.eager import context
from tensorflow.python.ops import lookup_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from psrun.tf_internals.replaced import replace, replaced
from psrun.tf_internals.required import require

_ONE_CPU = ("/device:CPU:0",)


def disable_thread_spinning() -> None:
    """Makes idle threads sleep on the servers, when they run the steps of the coordinator of this process.

    Servers run that with the options of the coordinator's context, which no public option reaches. Where several
    servers share cores, threads that spin took 7 % of the time (TensorFlow 2.21).
    """
    calm = tf.compat.v1.ConfigProto.Experimental(disable_thread_spinning=True)
    replace(context.context(), "_config", lambda _: tf.compat.v1.ConfigProto(experimental=calm))


@contextlib.contextmanager
def being_scheduled(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Lets `strategy.run` know that what is traced here runs on workers, as `ClusterCoordinator.schedule` does.

    psrun traces a step before it schedules it. Otherwise the strategy warns of work on the coordinator (TensorFlow
    2.21). Other strategies do not read the attribute.
    """
    extended = strategy.extended
    if not isinstance(extended, ParameterServerStrategyV2Extended):
        yield
        return
    before = extended._being_scheduled
    extended._being_scheduled = True
    try:
        yield
    finally:
        extended._being_scheduled = before


def per_worker_iterator(
    coordinator: tf.distribute.coordinator.ClusterCoordinator, make_dataset: Callable[[], tf.data.Dataset]
) -> Any:
    """Creates a dataset on each worker, and returns an iterator of all of them, for functions that are scheduled.

    TensorFlow recommends a distributed dataset to workers with GPUs, which splits batches among their replicas. psrun
    splits them within the step, so that the recommendation is not logged.
    """
    logger = tf.get_logger()
    logger.addFilter(_recommends_no_other_dataset)
    try:
        return iter(coordinator.create_per_worker_dataset(make_dataset))
    finally:
        logger.removeFilter(_recommends_no_other_dataset)


def _recommends_no_other_dataset(record: logging.LogRecord) -> bool:
    return "GPUs are allocated per worker. Please use DistributedDataset" not in record.getMessage()


def name_tables_uniquely() -> None:
    """Gives lookup tables names that no other process gives.

    Workers keep the tables of a chief that has exited. TensorFlow names tables by numbers that restart in every
    process: the next chief's could meet another one's, "already initialized with different data". Initializers take no
    name (TensorFlow 2.21).
    """
    unique = property(lambda self: uuid.uuid4().hex)
    replace(lookup_ops.KeyValueTensorInitializer, "_shared_name", lambda _: unique)


def let_branches_look_up() -> None:
    """Lets the branches of a step look up in tables, as those of `Model.fit` with several steps per execution do.

    A step gets the handle of its worker's copy of a table when it is called, through a placeholder. TensorFlow makes it
    in the graph of the branch, which nobody calls with a value (TensorFlow 2.21).
    """
    handle = DistributedTable.resource_handle
    if getattr(handle.fget, "of_psrun", False):
        return

    def of_the_function(self: Any) -> Any:
        if tf.executing_eagerly():
            return handle.fget(self)
        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, ControlFlowFuncGraph):
            graph = graph.outer_graph
        with graph.as_default():
            return handle.fget(self)

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


def incarnation(channel: grpc.Channel, timeout_s: float) -> int | None:
    """The random number that a server took when it started; None where it is too busy to answer within `timeout_s`.

    With it TensorFlow itself finds that a server was started again. No public function asks a single server for it, and
    the messages of `WorkerService` are not in the wheel: as bytes, the devices are field 1 of the answer (TensorFlow
    2.21).

    Raises:
      RuntimeError: the server has no such method.
    """
    try:
        answer = channel.unary_unary("/tensorflow.WorkerService/GetStatus")(b"", timeout=timeout_s)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise RuntimeError("TensorFlow's servers have no WorkerService.GetStatus any more") from error
        return None
    devices = tf.train.BytesList.FromString(answer).value
    return device_attributes_pb2.DeviceAttributes.FromString(devices[0]).incarnation
