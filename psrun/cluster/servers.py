"""The servers of workers and parameter servers, and the signal to them that the run is over.

Imports no more of TensorFlow than a server needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from psrun.errors import ServerStartError
from psrun.tf_internals import servers

# With the tutorials' `workers + 1` threads a third cluster in one process hung; with 16 no tested sequence did.
NUM_INTER_OP_THREADS = 16
_RUN_OVER_FILE = 250  # file descriptor that all tasks use for the signal; free so early in every process
RUN_OVER_PATH = f"/proc/self/fd/{_RUN_OVER_FILE}"  # of the file, in the process of the server


def devices(job: str, num_replicas: int | None) -> dict[str, int]:
    """The maximum number of devices by kind on the server of a task; other kinds have no maximum.

    Only workers have GPUs: TensorFlow takes the memory of every GPU that a process sees.

    Args:
      num_replicas: of a worker; None for one per GPU, or one.
    """
    if job != "worker":
        return {"GPU": 0}
    return {} if num_replicas is None else {"CPU": num_replicas, "GPU": num_replicas}


def threads_of_an_op(addresses: Mapping[str, Mapping[int, str]], job: str, index: int, num_cores: int) -> int:
    """The share of its host's cores for one server: with all cores each, servers would slow each other down."""
    host = addresses[job][index].rpartition(":")[0]
    others = (address for name in ("worker", "ps") for address in addresses.get(name, {}).values())
    sharing = sum(other.rpartition(":")[0] == host for other in others)
    return max(1, num_cores // max(1, sharing))


def start(addresses: Mapping[str, Mapping[int, str]], job: str, index: int, num_replicas: int | None = None) -> Any:
    """Starts the server of one task in this process; it lives as long as the returned object.

    Args:
      addresses: of all tasks, by job and index.
      num_replicas: of each worker, as in `devices`.

    Raises:
      ServerStartError: the server could not be started, usually because its port is in use.
    """
    try:
        return servers.start(
            addresses,
            job,
            index,
            device_count=devices(job, num_replicas),
            num_inter_op_threads=NUM_INTER_OP_THREADS,
            num_intra_op_threads=threads_of_an_op(addresses, job, index, len(os.sched_getaffinity(0))),
        )
    except servers.OpError as error:
        address = addresses[job][index]
        raise ServerStartError(
            f"the server of {job} {index} could not be started on {address}: {error.message}. Is the port taken?",
            task=f"{job}-{index}",
        ) from error


class RunOverSignal:
    """True once a chief has run `strategy.signal_over` in this process.

    The signal is an anonymous file, so that only the chief of this run reaches it: servers of two runs on one machine,
    each in a private network, may have the same address.
    """

    def __init__(self) -> None:
        unnamed = os.memfd_create("psrun-over")
        os.dup2(unnamed, _RUN_OVER_FILE, inheritable=False)
        os.close(unnamed)

    def __bool__(self) -> bool:
        return os.fstat(_RUN_OVER_FILE).st_size > 0

    def close(self) -> None:
        os.close(_RUN_OVER_FILE)
