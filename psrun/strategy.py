"""The distribution strategy of a run: topology and partitioner, as TensorFlow knows them."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from psrun import config
from psrun.cluster import inprocess
from psrun.errors import ConfigError, Problem

partitioners = tf.distribute.experimental.partitioners


@dataclass(frozen=True)
class Distribution:
    """A strategy, and the coordinator that schedules steps on its workers (None: steps run in this process)."""

    strategy: tf.distribute.Strategy
    coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None


def configure_threads(cluster: config.Cluster) -> None:
    """Sets the thread pools of this process. Only possible before TensorFlow has run anything."""
    if isinstance(cluster, config.InProcess):
        tf.config.threading.set_inter_op_parallelism_threads(inprocess.NUM_INTER_OP_THREADS)


def connect(cluster: config.Cluster, partitioner: config.Partitioner) -> Distribution:
    """Starts what the topology needs and connects to it.

    Raises:
      ConfigError: this machine has not got the devices that the topology names.
      ServerStartError: a server of the cluster could not be started.
    """
    match cluster:
        case config.NoCluster():
            return Distribution(tf.distribute.get_strategy())
        case config.OneDevice(device=device):
            return Distribution(tf.distribute.OneDeviceStrategy(_existing(device)))
        case config.Mirrored(num_replicas=n):
            return Distribution(tf.distribute.MirroredStrategy(_devices(n)))
        case config.CentralStorage(num_replicas=n):
            return Distribution(tf.distribute.experimental.CentralStorageStrategy(_devices(n), "/CPU:0"))
        case config.InProcess():
            spec = inprocess.start(num_workers=cluster.num_workers, num_ps=cluster.num_ps)
            return parameter_servers(spec, partitioner)


def parameter_servers(spec: tf.train.ClusterSpec, partitioner: config.Partitioner) -> Distribution:
    """Connects to servers that are up. Blocks without a bound while one of them is not."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=make_partitioner(partitioner))
    return Distribution(strategy, tf.distribute.coordinator.ClusterCoordinator(strategy))


def make_partitioner(partitioner: config.Partitioner) -> tf.distribute.experimental.partitioners.Partitioner | None:
    """TensorFlow's partitioner: a function of (shape, dtype) to the number of shards along each axis."""
    match partitioner:
        case config.NoPartitioner():
            return None
        case config.FixedShards(num_shards=n):
            return partitioners.FixedShardsPartitioner(n)
        case config.MinSize():
            return partitioners.MinSizePartitioner(partitioner.min_shard_bytes, partitioner.max_shards)
        case config.MaxSize():
            return partitioners.MaxSizePartitioner(partitioner.max_shard_bytes, partitioner.max_shards)


def _existing(device: str) -> str:
    known = [f"/{device.device_type}:{index}" for kind in ("CPU", "GPU")
             for index, device in enumerate(tf.config.list_physical_devices(kind))]  # fmt: skip
    if device.upper() not in known:
        raise ConfigError([Problem("cluster.device", f"{device!r} is not there; this machine has {', '.join(known)}")])
    return device


def _devices(num_replicas: int) -> list[str]:
    """One device a replica: GPUs where there are enough, else the CPU in as many parts."""
    if 0 < num_replicas <= len(tf.config.list_physical_devices("GPU")):
        return [f"/GPU:{index}" for index in range(num_replicas)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if num_replicas > len(tf.config.get_logical_device_configuration(cpu) or [None]):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_replicas)
    return [f"/CPU:{index}" for index in range(num_replicas)]
