"""Workers and parameter servers as servers inside this process."""

from __future__ import annotations

import os

import portpicker
import tensorflow as tf

from psrun.cluster import devices
from psrun.errors import ServerStartError

# With the tutorials' `workers + 1` a third cluster in one process hung; with 16 every sequence tried went through.
NUM_INTER_OP_THREADS = 16
_ATTEMPTS = 3

_servers: list[tf.distribute.Server] = []  # TensorFlow cannot stop a server: they live as long as the process


def start(*, num_workers: int, num_ps: int, num_replicas: int | None = None) -> tf.train.ClusterSpec:
    """Starts the servers of a cluster on free ports of the loopback interface's host name.

    Args:
      num_workers: 1 or more.
      num_ps: how many parameter servers; TensorFlow needs one, so 0 starts one that stands for the chief's process.
      num_replicas: of each worker, as in `devices.of_replicas`.

    Returns:
      The addresses of the servers, jobs `worker` and `ps`.

    Raises:
      ServerStartError: a server could not be started, also on other ports.
    """
    jobs = {"worker": num_workers, "ps": max(num_ps, 1)}
    for attempt in range(1, _ATTEMPTS + 1):
        addresses = {job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(n)] for job, n in jobs.items()}
        spec = tf.train.ClusterSpec(addresses)
        try:
            _servers.extend(
                start_server(spec, job, index, num_replicas) for job, n in jobs.items() for index in range(n)
            )
            return spec
        except ServerStartError:
            # Somebody took the port between the picking and the starting; the next picks are others.
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def threads_of_an_op(spec: tf.train.ClusterSpec, job: str, index: int, num_cores: int) -> int:
    """The share of one server of its host's cores: with all cores for each they would get into each other's way."""
    host = spec.task_address(job, index).rpartition(":")[0]
    sharing = sum(address.rpartition(":")[0] == host for name in ("worker", "ps") for address in spec.job_tasks(name))
    return max(1, num_cores // max(1, sharing))


def start_server(
    spec: tf.train.ClusterSpec, job: str, index: int, num_replicas: int | None = None
) -> tf.distribute.Server:
    """Starts the server of one task in this process.

    Args:
      num_replicas: of each worker, as in `devices.of_replicas`.

    Raises:
      ServerStartError: it could not be started, mostly because its port is taken.
    """
    config = tf.compat.v1.ConfigProto(
        device_count=devices.of_server(job, num_replicas),
        inter_op_parallelism_threads=NUM_INTER_OP_THREADS,
        intra_op_parallelism_threads=threads_of_an_op(spec, job, index, len(os.sched_getaffinity(0))),
    )
    try:
        return tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc", config=config)
    except tf.errors.OpError as error:
        address = spec.task_address(job, index)
        raise ServerStartError(
            f"the server of {job} {index} could not be started on {address}: {error.message}. Is the port taken?",
            task=f"{job}-{index}",
        ) from error
