"""The number of jobs that fit the cores and the memory of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.launch.backend import TaskPlan

# A process with TensorFlow uses 0.7 GiB without a model; an in-process cluster with two workers and two ps, 0.9.
_PROCESS_BYTES = 2**30
_CGROUP = Path("/sys/fs/cgroup")


def jobs_at_once(runs: Sequence[RunConfig], *, cores: int | None = None, memory_bytes: int | None = None) -> int:
    """The number of jobs, each as large as the largest of `runs`, that can run at once; at least one.

    A job needs a core for each worker and a gibibyte for each process; the size of its tables is not counted.

    Args:
      cores: None for those that this process may use.
      memory_bytes: None for the free memory.
    """
    sizes = [_size(run) for run in runs] or [(1, 1)]
    workers, processes = map(max, zip(*sizes))
    cores = _cores() if cores is None else cores
    memory_bytes = _free_bytes() if memory_bytes is None else memory_bytes
    return max(1, min(cores // workers, memory_bytes // (processes * _PROCESS_BYTES)))


def _size(run: RunConfig) -> tuple[int, int]:
    """The workers and the processes of a run on this machine."""
    match run.cluster:
        case choices.Ray(address=str()):  # whose tasks are elsewhere
            return 1, 1
        case choices.Local(num_workers=workers) | choices.MultiWorkerMirrored(num_workers=workers):
            return workers, len(TaskPlan.of(run).tasks())
        case choices.InProcess(num_workers=workers):
            return workers, 1
        case _:
            return 1, 1


def _cores() -> int:
    allowed = len(os.sched_getaffinity(0))
    quota, _, period = _read("cpu.max").partition(" ")
    return min(allowed, max(1, int(quota) // int(period))) if quota.isdigit() else allowed


def _free_bytes() -> int:
    free = psutil.virtual_memory().available
    most, used = _read("memory.max"), _read("memory.current")
    if not (most.isdigit() and used.isdigit()):
        return free
    # The page cache counts as used memory, but is freed on demand.
    reclaimable = dict(line.split() for line in _read("memory.stat").splitlines()).get("inactive_file", "0")
    return min(free, int(most) - int(used) + int(reclaimable))


def _read(name: str) -> str:
    """The limits of the container's control group; none without one."""
    try:
        return (_CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
