"""Starts workers and parameter servers inside this process."""

from __future__ import annotations

import portpicker
import tensorflow as tf

from psrun.cluster import servers
from psrun.errors import ServerStartError

_ATTEMPTS = 3

_servers: list[tf.distribute.Server] = []  # TensorFlow cannot stop a server: servers live as long as the process


def start(*, num_workers: int, num_ps: int, num_replicas: int | None = None) -> tf.train.ClusterSpec:
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
        addresses = {
            job: {i: f"localhost:{portpicker.pick_unused_port()}" for i in range(n)} for job, n in jobs.items()
        }
        try:
            _servers.extend(
                servers.start(addresses, job, index, num_replicas) for job, n in jobs.items() for index in range(n)
            )
            return tf.train.ClusterSpec(addresses)
        except ServerStartError:
            # Another process took the port after it was picked; retry with other ports.
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")
