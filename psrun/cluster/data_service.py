"""The servers of tf.data service: a dispatcher, which assigns work, and data workers, which read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from psrun.config.topology import DISPATCHER, Topology
from psrun.errors import ServerStartError

service = tf.data.experimental.service

# How soon a restarted data worker gets work, and the dispatcher learns of it.
_HEARTBEAT_MS = 1000

_servers: list[Any] = []  # they live as long as the process


def start_here(num_workers: int) -> str:
    """Starts a dispatcher and data workers in this process, on free ports; returns the dispatcher's address."""
    _servers.append(service.DispatchServer(service.DispatcherConfig(port=0)))
    target = _servers[-1].target
    for _ in range(num_workers):
        _servers.append(service.WorkerServer(_worker(target.rpartition("/")[2])))
    return target


def serve(topology: Topology, work_dir: Path) -> None:
    """Starts the server of this process's task.

    Args:
      work_dir: the folder in which a dispatcher keeps the state that it needs after a restart.

    Raises:
      ServerStartError: the server could not be started, usually because its port is in use.
    """
    me = topology.me
    address = topology.addresses[topology.me]
    try:
        if me == DISPATCHER:
            work_dir.mkdir(parents=True, exist_ok=True)
            config = service.DispatcherConfig(port=_port(address), work_dir=str(work_dir), fault_tolerant_mode=True)
            _servers.append(service.DispatchServer(config))
        else:
            _servers.append(service.WorkerServer(_worker(topology.addresses[DISPATCHER], address)))
    except tf.errors.OpError as error:
        raise ServerStartError(
            f"the server of {me} could not be started on {address}: {error.message}. Is the port taken?", task=str(me)
        ) from error


def target(topology: Topology) -> str:
    """The address of the dispatcher of a cluster."""
    return f"grpc://{topology.addresses[DISPATCHER]}"


def _worker(dispatcher: str, address: str | None = None) -> Any:
    own = {} if address is None else {"worker_address": address, "port": _port(address)}
    return service.WorkerConfig(dispatcher_address=dispatcher, heartbeat_interval_ms=_HEARTBEAT_MS, **own)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
