"""Workers and parameter servers as servers inside this process."""

from __future__ import annotations

import portpicker
import tensorflow as tf

from psrun.cluster import servers
from psrun.errors import ServerStartError

_ATTEMPTS = 3

_servers: list[tf.distribute.Server] = []  # TensorFlow cannot stop a server: they live as long as the process


def start(*, num_workers: int, num_ps: int, num_replicas: int | None = None) -> tf.train.ClusterSpec:
    """Starts the servers of a cluster on free ports of the loopback interface's host name.

    Args:
      num_workers: 1 or more.
      num_ps: how many parameter servers; TensorFlow needs one, so 0 starts one that stands for the chief's process.
      num_replicas: of each worker, as in `servers.devices`.

    Returns:
      The addresses of the servers, jobs `worker` and `ps`.

    Raises:
      ServerStartError: a server could not be started, also on other ports.
    """
    jobs = {"worker": num_workers, "ps": max(num_ps, 1)}
    for attempt in range(1, _ATTEMPTS + 1):
        addresses = {
            job: {i: f"localhost:{portpicker.pick_unused_port()}" for i in range(n)} for job, n in jobs.items()
        }
        try:
            _servers.extend(
                servers.start(addresses, job, index, num_replicas) for job, n in jobs.items() for index in range(n)
            )
            return tf.train.ClusterSpec(addresses)
        except ServerStartError:
            # Somebody took the port between the picking and the starting; the next picks are others.
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")
