"""The distribution strategy of a run, from topology and partitioner, and how it creates variables.

TensorFlow computes the initial value of a variable op by op and then assigns it: meanwhile a
parameter server holds two to three times the bytes of its shard, and does not free them. Here a
large variable is created empty, and one function on its parameter server computes the value in
place.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import portpicker
import tensorflow as tf

from psrun.cluster import placement, servers
from psrun.cluster.probe import answering, own_host, reachable
from psrun.config import choices, targets
from psrun.config.topology import CHIEF, Task, Topology
from psrun.errors import ClusterError, ConfigError, Problem, PsrunError, ServerStartError, TaskLostError
from psrun.tf_internals import strategies as internals
from psrun.tf_internals.coordinator import FailureHandler
from psrun.tf_internals.strategies import UninitializedVariable

# A partitioner of TensorFlow: from shape and dtype of a variable to its number of shards along each axis.
Partitioner = Callable[..., list[int]]

_of_tensorflow = tf.distribute.experimental.partitioners
_LARGE_BYTES = 1 << 20
_ATTEMPTS = 3
_ANSWER_WITHIN_S = 2.0
_REPLICAS = "cluster.replicas_per_worker"
_DEVICE_OF_WORKER = re.compile(r"^/job:worker/replica:\d+/task:(?P<task>\d+)/device:(CPU|GPU):\d+$")
_GENERATOR_STATE = 3  # integers in the state of a tf.random.Generator
_LOOK_EVERY_S = 0.05
_CONNECT_WITHIN_S = 120.0  # to servers in this process
_SIGNALED_WITHIN_S = 3.0
# Arguments of a new variable that do not say its value.
_VARIABLE_OPTIONS = (
    "name",
    "trainable",
    "distribute_strategy",
    "synchronization",
    "aggregation",
    "constraint",
    "caching_device",
)
_servers: list[tf.distribute.Server] = []  # TensorFlow cannot stop a server: servers live as long as the process
_collective: list[tf.distribute.Strategy] = []  # one per process


def make_partitioner(partitioner: choices.Partitioner) -> Partitioner | None:
    """TensorFlow's partitioner, a function of `shape` and `dtype`; None if no variable is sharded.

    Raises:
      ConfigError: a partitioner named by `_target_` cannot be created. The returned partitioner raises it if that one
        fails for a variable or returns an invalid value.
    """
    match partitioner:
        case choices.NoPartitioner():
            return None
        case choices.FixedShards(num_shards=n):
            return _of_tensorflow.FixedShardsPartitioner(n)
        case choices.MinSize():
            return _of_tensorflow.MinSizePartitioner(partitioner.min_shard_bytes, partitioner.max_shards)
        case choices.MaxSize():
            return _of_tensorflow.MaxSizePartitioner(partitioner.max_shard_bytes, partitioner.max_shards)
        case choices.OwnPartitioner(target=target):
            return _checked_partitioner(target)


def _checked_partitioner(target: targets.Target) -> Partitioner:
    """The partitioner of `target`, with checked results."""
    own = targets.bound(target, choices.OwnPartitioner.PARAMETERS)

    def partition(shape: tf.TensorShape, dtype: tf.DType, axis: int = 0) -> list[int]:
        variable = f"for a variable of shape {tuple(shape)} and dtype {dtype.name}"
        try:
            counts = own(shape=shape, dtype=dtype)
        except Exception as error:
            message = f"{target.name} failed {variable}: {type(error).__name__}: {error}"
            raise ConfigError([Problem(target.key, message)]) from error
        if problem := _wrong_counts(counts):
            raise ConfigError([Problem(target.key, f"{target.name} returned {counts!r} {variable}; {problem}")])
        return [int(count) for count in counts]

    return partition


def _wrong_counts(counts: Any) -> str | None:
    """The reason why a partitioner's result is invalid; None if it is valid."""
    integers = isinstance(counts, list | tuple) and all(
        isinstance(count, Integral) and not isinstance(count, bool) for count in counts
    )
    if not integers or not counts or min(counts) < 1:
        return "it must return a list of the number of shards along each axis, integers of 1 or more"
    if any(count != 1 for count in counts[1:]):
        return "TensorFlow partitions variables along the first axis only: all other numbers must be 1"
    return None


def creating_in_place() -> contextlib.AbstractContextManager[None]:
    """Creates large variables in this way. Enter it before the strategy's scope, which decides the placement first."""
    return tf.variable_creator_scope(_create_in_place)


def _create_in_place(next_creator: Any, **kwargs: Any) -> tf.Variable:
    value = kwargs.get("initial_value")
    if not callable(value) or not tf.executing_eagerly() or "/job:ps" not in _device_of_new_variable():
        return next_creator(**kwargs)
    shape = kwargs.get("shape")
    dtype = kwargs.get("dtype")
    if shape is not None and dtype is not None and not _is_large(tf.TensorShape(shape), tf.as_dtype(dtype)):
        return next_creator(**kwargs)
    try:
        traced = tf.function(lambda: tf.convert_to_tensor(value(), dtype)).get_concrete_function()
    except Exception:  # any error of an initializer that does not work in a function
        return next_creator(**kwargs)
    output = traced.structured_outputs
    # Constant values would become part of the function.
    if not _is_large(output.shape, output.dtype) or traced.graph.as_graph_def().ByteSize() > _LARGE_BYTES:
        return next_creator(**kwargs)
    options = {name: kwargs[name] for name in _VARIABLE_OPTIONS if name in kwargs}
    variable = UninitializedVariable(shape=output.shape, dtype=output.dtype, **options)
    with tf.device(variable.device):
        fill = tf.function(lambda: variable.assign(value(), read_value=False) and None)
        fill.get_concrete_function()()  # TensorFlow would warn that the function is traced again for each variable
    return variable


def _is_large(shape: tf.TensorShape, dtype: tf.DType) -> bool:
    return bool(shape.is_fully_defined() and shape.num_elements() * dtype.size >= _LARGE_BYTES)


def _device_of_new_variable() -> str:
    """The device of a variable that is created now."""
    with tf.init_scope():
        return tf.zeros([]).device


def start_in_process(*, num_workers: int, num_ps: int, num_replicas: int | None = None) -> tf.train.ClusterSpec:
    """Starts the servers of a cluster on free ports of the loopback interface's host name.

    Args:
      num_workers: 1 or more.
      num_ps: 1 or more, as TensorFlow requires.
      num_replicas: of each worker, as in `servers.devices`.

    Returns:
      The addresses of the servers, jobs `worker` and `ps`.

    Raises:
      ServerStartError: a server could not be started, even on other ports.
    """
    jobs = {"worker": num_workers, "ps": num_ps}
    for attempt in range(1, _ATTEMPTS + 1):
        addresses = {}
        for job, number in jobs.items():
            addresses[job] = {index: f"localhost:{portpicker.pick_unused_port()}" for index in range(number)}
        try:
            for job, tasks in addresses.items():
                for index in tasks:
                    _servers.append(servers.start(addresses, job, index, num_replicas))
            return tf.train.ClusterSpec(addresses)
        except ServerStartError:
            # Another process took the port after it was picked; retry with other ports.
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class Distribution:
    """The strategy and the cluster of a run.

    Attributes:
      coordinator: schedules steps on workers; None if steps run in this process.
      num_workers: also of workers that this process plays.
      traffic: of workers that this process plays, the bytes that one reads from each parameter server in a step, and
        that it pushes there.
    """

    strategy: tf.distribute.Strategy
    coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None
    num_workers: int = 1
    traffic: Sequence[tuple[int, int]] = ()


def prepare(cluster: choices.ClusterChoice, topology: Topology | None) -> None:
    """Configures thread pools and collectives, which is possible only before TensorFlow runs anything in this process.

    Blocks until every task of a synchronous cluster has joined.
    """
    if cluster.has_parameter_servers and not cluster.has_server_processes:
        tf.config.threading.set_inter_op_parallelism_threads(servers.NUM_INTER_OP_THREADS)
    if cluster.has_parameter_servers and cluster.shares_cores:
        internals.disable_thread_spinning()
    if cluster.has_parameter_servers:
        internals.name_tables_uniquely()
        internals.let_branches_look_up()
    if cluster.has_server_processes:
        tf.config.set_visible_devices([], "GPU")  # workers on the same host use them
    if cluster.has_synchronous_workers:
        assert topology is not None
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(topology.spec()),
            task_type=topology.me.job,
            task_id=topology.me.index,
            rpc_layer="grpc",
        )
        _collective.append(tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver))


def connect(
    cluster: choices.ClusterChoice,
    partitioner: choices.Partitioner,
    topology: Topology | None = None,
    *,
    rule: placement.Rule | None = None,
    give_up: Callable[[PsrunError], None] | None = None,
) -> Distribution:
    """Starts the servers of this process and connects to the cluster. Call `prepare` first; other servers must be up.

    Args:
      topology: of a cluster of several processes, of which this one is the chief.
      rule: places variables on parameter servers; None for the rule of `cluster.placement`.
      give_up: called in another thread with an error if TensorFlow does not connect in time: it would wait for ever.

    Raises:
      ConfigError: this machine does not have the devices of the cluster, or the partitioner cannot be created.
      ServerStartError: a server of the cluster could not be started.
    """
    replicas = cluster.replicas_per_worker
    rule = rule or placement.RULES[cluster.placement]
    if cluster.has_parameter_servers and cluster.has_server_processes:
        assert topology is not None
        spec = tf.train.ClusterSpec(_with_chief(topology).spec())
        with _deadline(spec, cluster.connect_timeout_s, give_up, error=TaskLostError):
            return parameter_servers(spec, partitioner, rule, replicas)
    match cluster:
        case choices.InProcess():
            spec = start_in_process(num_workers=cluster.num_workers, num_ps=cluster.num_ps, num_replicas=replicas)
            with _deadline(spec, _CONNECT_WITHIN_S, give_up, error=ClusterError):
                return parameter_servers(spec, partitioner, rule, replicas)
        case choices.OneDevice(device=device):
            return Distribution(tf.distribute.OneDeviceStrategy(_existing(device)))
        case choices.Mirrored(num_replicas=n):
            return Distribution(tf.distribute.MirroredStrategy(_devices(n)))
        case choices.CentralStorage(num_replicas=n):
            return Distribution(tf.distribute.experimental.CentralStorageStrategy(_devices(n), "/CPU:0"))
        case choices.MultiWorkerMirrored():
            return Distribution(_collective[-1])
    num_played = cluster.num_workers if cluster.played_by else None
    return Distribution(tf.distribute.get_strategy(), num_workers=num_played or 1)


def wait_for_servers(topology: Topology, *, within_s: float, error: type[PsrunError]) -> None:
    """Waits until every worker and parameter server answers; TensorFlow itself would wait without a message.

    Args:
      error: raised with the names of all servers that did not answer.
    """

    def up(tasks: Sequence[Task]) -> set[Task]:
        return answering({task: topology.addresses[task] for task in tasks}, timeout_s=_ANSWER_WITHIN_S)

    late = _wait([*topology.of("ps"), *topology.of("worker")], up, within_s)
    if late:
        where = _addresses(late, topology)
        raise error(f"not reached within {within_s:.0f} s (connect_timeout_s): {where}", task=str(late[0]))


def wait_for_tasks(topology: Topology, is_up: Callable[[Task], bool], *, within_s: float) -> None:
    """Waits until every task of a synchronous cluster is up, in Python.

    TensorFlow waits for the others without a message, with Python's lock held and without SIGTERM: no thread of this
    process could end it (TensorFlow 2.21).

    Raises:
      ClusterError: some are not; names them.
    """

    def up(tasks: Sequence[Task]) -> set[Task]:
        return {task for task in tasks if is_up(task)}

    late = _wait([*topology.addresses], up, within_s)
    if late:
        limit = f"{within_s:.0f} s (cluster.restart.start_timeout_s)"
        raise ClusterError(f"not started within {limit}: {_addresses(late, topology)}", task=str(late[0]))


def _wait(tasks: Sequence[Task], up: Callable[[Sequence[Task]], set[Task]], within_s: float) -> list[Task]:
    """Waits until all tasks are up.

    Args:
      up: returns which of some tasks are up.

    Returns:
      The tasks that are not up within `within_s`.
    """
    waiting = list(tasks)
    deadline_s = time.monotonic() + within_s
    while True:
        found = up(waiting)
        waiting = [task for task in waiting if task not in found]
        if not waiting or time.monotonic() > deadline_s:
            return waiting
        time.sleep(_LOOK_EVERY_S)


def _addresses(tasks: Sequence[Task], topology: Topology) -> str:
    return ", ".join(f"{task} at {topology.addresses[task]}" for task in tasks)


@contextlib.contextmanager
def _deadline(
    spec: tf.train.ClusterSpec,
    within_s: float,
    give_up: Callable[[PsrunError], None] | None,
    *,
    error: type[PsrunError],
) -> Iterator[None]:
    """Gives up if the context takes longer than `within_s`: TensorFlow waits without a message and without a limit.

    Args:
      error: to give up with; its message names the addresses of `spec`.
    """
    if give_up is None:
        yield
        return
    others = [(job, index) for job in sorted(spec.jobs) for index in spec.task_indices(job) if job != CHIEF.job]
    where = ", ".join(f"{job}-{index} at {spec.task_address(job, index)}" for job, index in others)
    late = error(f"TensorFlow has not connected within {within_s:.0f} s to {where}")
    clock = threading.Timer(within_s, give_up, [late])
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        clock.cancel()


def _with_chief(topology: Topology) -> Topology:
    """The topology with an address for the chief; TensorFlow's default, localhost, is unreachable from other hosts."""
    if CHIEF in topology.addresses:
        return topology
    host = own_host(topology.addresses[topology.of("worker")[0]])
    return replace(topology, addresses={**topology.addresses, CHIEF: f"{host}:{portpicker.pick_unused_port()}"})


def parameter_servers(
    spec: tf.train.ClusterSpec,
    partitioner: choices.Partitioner,
    rule: placement.Rule = placement.greedy,
    num_replicas: int | None = None,
) -> Distribution:
    """Connects to the servers. Blocks, without a timeout, until all of them are up.

    Args:
      num_replicas: of each worker, as in `replica_devices`.

    Raises:
      ConfigError: the workers do not have devices for the replicas, or the partitioner cannot be created.
    """
    chief = {"task_type": "chief", "task_id": 0} if "chief" in spec.jobs else {}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc", **chief)
    cut = make_partitioner(partitioner)
    strategy = internals.strategy_with_replicas(
        lambda: tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut),
        lambda: replica_devices(num_replicas),
    )
    _guide(strategy, rule)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    FailureHandler.of(coordinator, functools.partial(reachable, timeout_s=1.0))
    return Distribution(strategy, coordinator, spec.num_tasks("worker"))


def _guide(strategy: tf.distribute.ParameterServerStrategy, rule: placement.Rule) -> None:
    """Makes the strategy place each variable by `rule`; colocated variables are only counted."""
    creation = internals.VariableCreation(strategy)
    create = creation.create
    servers = placement.Servers(creation.num_ps, rule)

    def placed(next_creator: Any, **kwargs: Any) -> Any:
        if kwargs.get("per_worker_variable"):
            return create(next_creator, **kwargs)
        if "colocate_with" in kwargs:
            variable = create(next_creator, **kwargs)
            job, _, index = placement.task_of(variable.device).partition("-")
            if job == "ps":
                servers.add(int(index), (variable.shape.num_elements() or 0) * variable.dtype.size)
            return variable
        shape, dtype = spec_of_arguments(kwargs)
        if stays_whole(kwargs.get("shape"), shape, dtype):
            size_bytes = (shape.num_elements() or 1) * dtype.size
            creation.set_next_server(servers.take([size_bytes]))
            return creation.create_whole(next_creator, **kwargs)
        shape = shape if shape.is_fully_defined() else tf.TensorShape(())  # unknown size: counted as one value
        partition = creation.partitioner
        num_shards = partition(shape=shape, dtype=dtype)[0] if partition and shape.rank else 1
        creation.set_next_server(servers.take(placement.shard_bytes(tuple(shape), dtype.size, num_shards)))
        return create(next_creator, **kwargs)

    creation.replace(placed)


def stays_whole(declared: Any, shape: tf.TensorShape, dtype: tf.DType) -> bool:
    """Whether a variable is in one piece, whatever the partitioner.

    Shards have fixed sizes, but the state of layers with `adapt` changes its size. TensorFlow does not restore shards
    of strings, and `tf.random.Generator`, whose state is three integers, refuses shards (TensorFlow 2.21).

    Args:
      declared: the shape for which the variable is created; None for the shape of its value.
      shape, dtype: of the value.
    """
    if declared is not None and not tf.TensorShape(declared).is_fully_defined():
        return True
    return dtype == tf.string or (dtype.is_integer and (shape.num_elements() or 0) <= _GENERATOR_STATE)


def spec_of_arguments(kwargs: Mapping[str, Any]) -> tuple[tf.TensorShape, tf.DType]:
    """Shape and type of a variable from the arguments of its creator, without computing the initial value."""
    value = kwargs["initial_value"]
    shape = kwargs.get("shape")
    dtype = kwargs.get("dtype")
    if value is None or (callable(value) and shape is not None and dtype is not None):
        return tf.TensorShape(shape), tf.as_dtype(dtype)
    if callable(value):
        traced = tf.function(lambda: tf.convert_to_tensor(value(), dtype=dtype)).get_concrete_function()
        return traced.structured_outputs.shape, traced.structured_outputs.dtype
    tensor = tf.convert_to_tensor(value, dtype=dtype)
    return tensor.shape, tensor.dtype


def replica_devices(num_replicas: int | None) -> tuple[str, ...]:
    """The devices of the replicas of each worker of the connected cluster.

    Args:
      num_replicas: number of GPUs, if each worker has that many, else of virtual CPUs; None for all GPUs of a
        worker, or one replica on the CPU without GPUs.

    Raises:
      ConfigError: workers have different numbers of GPUs, or fewer virtual CPUs than replicas.
    """
    cpus, gpus = (_by_worker(tf.config.list_logical_devices(kind)) for kind in ("CPU", "GPU"))
    by_worker = {task: gpus[task] for task in sorted(cpus)}
    fewest = min(by_worker.values(), default=0)
    if num_replicas is None:
        if len(set(by_worker.values())) > 1:
            counts = ", ".join(f"worker-{task} {count}" for task, count in by_worker.items())
            message = f"is null (one replica per GPU), but workers have different numbers of GPUs ({counts})"
            raise ConfigError([Problem(_REPLICAS, f"{message}; set a number that all workers have")])
        num_replicas = max(1, fewest)
    kind = "GPU" if fewest >= num_replicas else "CPU"
    short = [task for task, count in cpus.items() if count < num_replicas]
    if kind == "CPU" and short:
        message = f"is {num_replicas}, but worker-{short[0]} was started with {cpus[short[0]]}"
        raise ConfigError([Problem(_REPLICAS, f"{message}; start all tasks with the same number")])
    return tuple(f"/device:{kind}:{index}" for index in range(num_replicas))


def _by_worker(devices: Iterable[tf.config.LogicalDevice]) -> Counter[int]:
    """The number of these devices on each worker."""
    matches = (_DEVICE_OF_WORKER.match(device.name) for device in devices)
    return Counter(int(match["task"]) for match in matches if match)


def _existing(device: str) -> str:
    names = []
    for kind in ("CPU", "GPU"):
        for index, physical in enumerate(tf.config.list_physical_devices(kind)):
            names.append(f"/{physical.device_type}:{index}")
    if device.upper() not in names:
        message = f"{device!r} does not exist; this machine has {', '.join(names)}"
        raise ConfigError([Problem("cluster.device", message)])
    return device


def _devices(num_replicas: int) -> list[str]:
    """One device per replica: GPUs if there are enough, else virtual CPUs."""
    if 0 < num_replicas <= len(tf.config.list_physical_devices("GPU")):
        return [f"/GPU:{index}" for index in range(num_replicas)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if num_replicas > len(tf.config.get_logical_device_configuration(cpu) or [None]):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_replicas)
    return [f"/CPU:{index}" for index in range(num_replicas)]


def signal_run_over(topology: Topology) -> None:
    """Signals to every server that the run is over. Does not require a shared folder.

    Call in the chief while it is connected. Takes a few seconds at most: servers that are not reached detect the loss
    of the chief.
    """
    threads = [threading.Thread(target=_signal, args=(task,), daemon=True) for task in topology.servers()]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _SIGNALED_WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _signal(task: Task) -> None:
    with tf.device(f"/job:{task.job}/replica:0/task:{task.index}/device:CPU:0"):
        try:
            tf.function(signal_over)()
        except tf.errors.OpError as error:
            tf.get_logger().warning("%s did not receive the signal that the run is over: %s", task, error)


def signal_over() -> None:
    """Signals the process that runs it. Without arguments: sending a tensor to a worker that rejoined can hang."""
    tf.io.write_file(servers.RUN_OVER_PATH, "over")
