"""The devices of a worker's replicas."""

from __future__ import annotations

import re
from collections.abc import Iterable

import tensorflow as tf

from psrun.errors import ConfigError, Problem

KEY = "cluster.replicas_per_worker"
_WORKERS_DEVICE = re.compile(r"^/job:worker/replica:\d+/task:(?P<task>\d+)/device:(?P<kind>CPU|GPU):\d+$")


def of_replicas(num_replicas: int | None) -> tuple[str, ...]:
    """The devices of the replicas of each worker of the connected cluster.

    Args:
      num_replicas: number of GPUs, if each worker has that many, else of virtual CPUs; None for all GPUs of a
        worker, or one replica on the CPU without GPUs.

    Raises:
      ConfigError: workers have different numbers of GPUs, or fewer virtual CPUs than replicas.
    """
    cpus, gpus = (_by_worker(tf.config.list_logical_devices(kind)) for kind in ("CPU", "GPU"))
    by_worker = {task: gpus.get(task, 0) for task in sorted(cpus)}
    fewest = min(by_worker.values(), default=0)
    if num_replicas is None:
        if len(set(by_worker.values())) > 1:
            counts = ", ".join(f"worker-{task} {count}" for task, count in by_worker.items())
            message = f"is null (one replica per GPU), but workers have different numbers of GPUs ({counts})"
            raise ConfigError([Problem(KEY, f"{message}; set a number that all workers have")])
        num_replicas, kind = max(1, fewest), "GPU" if fewest else "CPU"
    else:
        kind = "GPU" if fewest >= num_replicas else "CPU"
    short = [task for task, count in cpus.items() if count < num_replicas]
    if kind == "CPU" and short:
        message = f"is {num_replicas}, but worker-{short[0]} was started with {cpus[short[0]]}"
        raise ConfigError([Problem(KEY, f"{message}; start all tasks with the same number")])
    return tuple(f"/device:{kind}:{index}" for index in range(num_replicas))


def _by_worker(devices: Iterable[tf.config.LogicalDevice]) -> dict[int, int]:
    """The number of these devices on each worker."""
    counts: dict[int, int] = {}
    for match in (_WORKERS_DEVICE.match(device.name) for device in devices):
        if match:
            counts[int(match["task"])] = counts.get(int(match["task"]), 0) + 1
    return counts
