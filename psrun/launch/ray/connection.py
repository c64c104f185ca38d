"""The driver's connection to a Ray cluster: one that is there, or one of its own that ends with it."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from psrun import files
from psrun.cluster.probe import reachable
from psrun.config import choices
from psrun.errors import ClusterError, ConfigError, Interrupted, Problem

_REACHED_WITHIN_S = 5.0
_STORE_BYTES = 100 * 2**20  # for Ray's objects, of which there are none to speak of
_CLOSED_WITHIN_S = 10.0
_KEY = "cluster.address"
_SHORT, _PREFIX = Path("/tmp"), "psrun-ray-"  # names of Ray's sockets, which lie in there, must be short
_NEW_S = 60.0  # a folder may not be locked yet

_own: list[Path] = []  # folders of a cluster of this process's own


@contextlib.contextmanager
def opened(cluster: choices.Ray, *, num_cpus: float) -> Iterator[None]:
    """Connects this process to the cluster, and leaves it in the end; one of its own is ended.

    Args:
      num_cpus: that the run asks for; a cluster of its own has so many, whatever this machine has.

    Raises:
      ConfigError: `cluster.address` is not that of a Ray cluster.
      ClusterError: there is one, and no connection was possible within `cluster.connect_timeout_s`.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options: dict[str, Any] = {"address": cluster.address, "logging_level": "ERROR", "log_to_driver": False}
    if cluster.address is None:
        options |= _own_cluster(num_cpus)
    else:
        _check(cluster.address)
    try:
        _connect(options, cluster)
        yield
    finally:
        close()


def _own_cluster(num_cpus: float) -> dict[str, Any]:
    """The arguments of `ray.init` for a private cluster, in a folder that is removed with it."""
    for left in _SHORT.glob(f"{_PREFIX}*"):  # by drivers that were killed
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _NEW_S and not files.is_locked(left):
                shutil.rmtree(left)
    own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT))
    _own.append(own)
    files.lock(own)  # never let go of before the process ends
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # else Ray keeps one in the home directory
    os.environ.setdefault(
        "RAY_gcs_rpc_server_reconnect_timeout_s", "5"
    )  # else its agents outlive a killed driver by 60
    cpus = math.ceil(max(num_cpus, os.cpu_count() or 1))
    options = {"address": "local", "num_cpus": cpus, "include_dashboard": False, "_temp_dir": str(own)}
    return options | {"_node_ip_address": "127.0.0.1", "object_store_memory": _STORE_BYTES}


def close() -> None:
    """Leaves the cluster: its actors of this driver end, and with them the tasks. May be called again."""
    leaving = threading.Thread(target=ray.shutdown, daemon=True)  # it waits for ever where the cluster has gone
    leaving.start()
    leaving.join(_CLOSED_WITHIN_S)
    while _own:
        shutil.rmtree(_own.pop(), ignore_errors=True)


def _check(address: str) -> None:
    if address == "auto":
        return
    if not reachable(address, timeout_s=_REACHED_WITHIN_S):
        message = f"nothing listens at {address}; set the address of the head node (`ray start --head` prints it)"
        raise ConfigError([Problem(_KEY, f"{message}, or null for a private cluster")])


def _connect(options: dict[str, Any], cluster: choices.Ray) -> None:
    """`ray.init`, which has no bound of its own where something else than Ray answers.

    Raises:
      ConfigError, ClusterError: as `opened` does.
      Interrupted: the process is to end.
    """
    wrong: list[Exception] = []

    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}

    def connect() -> None:
        try:
            ray.init(**options)
        except Interrupted:
            raise
        except SystemExit as exit_:  # Ray's way of ending with a SIGTERM, while this thread is in there
            raise Interrupted(signal.SIGTERM) from exit_
        except Exception as error:  # of many kinds, of Ray's and of Python's
            wrong.append(error)

    try:
        if cluster.address is None:
            connect()  # the kernel ends Ray's processes with the thread that started them
        else:
            connecting = threading.Thread(target=connect, daemon=True)
            connecting.start()
            connecting.join(cluster.connect_timeout_s)
            if connecting.is_alive():
                within = f"within {cluster.connect_timeout_s:.0f} s (cluster.connect_timeout_s)"
                raise ClusterError(f"the server at {cluster.address} did not answer as a Ray cluster {within}")
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)  # Ray has put its own in their place
    where = "of this run's own" if cluster.address is None else f"at {cluster.address}"
    if not wrong:
        return
    if isinstance(wrong[0], ConnectionError) and cluster.address == "auto":
        message = "is auto, but no Ray cluster runs on this machine; start one with `ray start`, or set it to null"
        raise ConfigError([Problem(_KEY, message)]) from wrong[0]
    reason = str(wrong[0]).strip().replace("\n", " ")
    raise ClusterError(f"no connection to a Ray cluster {where}: {reason}") from wrong[0]
