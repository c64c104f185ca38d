"""The driver's connection to a Ray cluster: an existing one, or a private one that ends with the driver."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ray

from psrun import files
from psrun.cluster.probe import reachable
from psrun.config.topology import Task
from psrun.engines.ray.choice import Ray
from psrun.errors import ClusterError, ConfigError, Interrupted, Problem

_REACHED_WITHIN_S = 5.0
_STORE_BYTES = 100 * 2**20  # for Ray's objects, which psrun hardly uses
_CLOSED_WITHIN_S = 10.0
_PARENT = Path("/tmp")  # the paths of Ray's sockets in there must be short
_PREFIX = "psrun-ray-"
_NEW_S = 60.0  # a new folder may not be locked yet

_own: list[Path] = []  # folders of private clusters of this process


@contextlib.contextmanager
def opened(cluster: Ray, tasks: Iterable[Task]) -> Iterator[None]:
    """Connects this process to the cluster, and disconnects at the end; a private cluster is ended.

    Args:
      tasks: a private cluster has as many CPUs as they request, whatever this machine has.

    Raises:
      ConfigError: `cluster.address` is not the address of a Ray cluster.
      ClusterError: no connection was possible within `cluster.connect_timeout_s`.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options: dict[str, Any] = {"address": cluster.address, "logging_level": "ERROR", "log_to_driver": False}
    if cluster.address is None:
        options |= _own_cluster(sum(getattr(cluster.resources, task.job).num_cpus for task in tasks))
    elif cluster.address != "auto" and not reachable(cluster.address, timeout_s=_REACHED_WITHIN_S):
        hint = "set the address of the head node (`ray start --head` prints it), or null for a private cluster"
        raise ConfigError([Problem("cluster.address", f"nothing listens at {cluster.address}; {hint}")])
    try:
        _connect(options, cluster)
        yield
    finally:
        close()


def _own_cluster(num_cpus: float) -> dict[str, Any]:
    """The arguments of `ray.init` for a private cluster, in a folder that is removed with it."""
    for abandoned in _PARENT.glob(f"{_PREFIX}*"):  # of killed drivers
        with contextlib.suppress(OSError):
            if time.time() - abandoned.stat().st_mtime > _NEW_S and not files.is_locked(abandoned):
                shutil.rmtree(abandoned)
    own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PARENT))
    _own.append(own)
    files.hold(own)
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # otherwise Ray stores one in the home directory
    # Otherwise its agents outlive a killed driver by 60 s.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves tasks beside other processes
    return {
        "address": "local",
        "num_cpus": math.ceil(max(num_cpus, os.cpu_count() or 1)),
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
        "_temp_dir": str(own),
        "_node_ip_address": "127.0.0.1",
    }


def close() -> None:
    """Disconnects from the cluster: the actors of this driver end, and their tasks. May be called repeatedly."""
    leaving = threading.Thread(target=ray.shutdown, daemon=True)  # it never returns if the cluster is gone
    leaving.start()
    leaving.join(_CLOSED_WITHIN_S)
    while _own:
        shutil.rmtree(_own.pop(), ignore_errors=True)


def _connect(options: dict[str, Any], cluster: Ray) -> None:
    """Calls `ray.init` with a time limit: it never returns if another server than Ray answers.

    Raises:
      ConfigError, ClusterError: as `opened` does.
      Interrupted: a signal asked the process to exit.
    """
    errors: list[Exception] = []
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}

    def connect() -> None:
        try:
            ray.init(**options)
        except SystemExit as exit_:  # how Ray handles SIGTERM during the call
            raise Interrupted(signal.SIGTERM) from exit_
        except Exception as error:  # of many types, of Ray and of Python
            errors.append(error)

    try:
        if cluster.address is None:
            # Ray's processes inherit the mask: the end of the terminal reaches them, too, but the tasks still save.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
            try:
                connect()  # the kernel ends Ray's processes with the thread that started them
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        else:
            connecting = threading.Thread(target=connect, daemon=True)
            connecting.start()
            connecting.join(cluster.connect_timeout_s)
            if connecting.is_alive():
                within = f"within {cluster.connect_timeout_s:.0f} s (cluster.connect_timeout_s)"
                raise ClusterError(f"the server at {cluster.address} did not answer as a Ray cluster {within}")
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)  # Ray has replaced them
    if not errors:
        return
    if isinstance(errors[0], ConnectionError) and cluster.address == "auto":
        message = "is auto, but no Ray cluster runs on this machine; start one with `ray start`, or set it to null"
        raise ConfigError([Problem("cluster.address", message)]) from errors[0]
    where = "a private Ray cluster" if cluster.address is None else f"the Ray cluster at {cluster.address}"
    raise ClusterError(f"cannot connect to {where}: {' '.join(str(errors[0]).split())}") from errors[0]
