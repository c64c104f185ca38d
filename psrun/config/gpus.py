"""Assignment of a machine's GPUs to tasks. Does not import TensorFlow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from psrun.config.topology import Task

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICE = re.compile(r"nvidia(\d+)")


def here(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """The CUDA names of the GPUs that are visible to a process with this environment."""
    if VISIBLE in environment:
        names = [name.strip() for name in environment[VISIBLE].split(",")]
        return names[: names.index("-1")] if "-1" in names else [name for name in names if name]
    matches = (_DEVICE.fullmatch(path.name) for path in devices.glob("nvidia*"))
    return sorted((match[1] for match in matches if match), key=int)


def of_task(task: Task, tasks: Iterable[Task], gpus: list[str]) -> dict[str, str]:
    """Environment variables of a task of parameter server training, if all tasks are on one machine with `gpus`.

    TensorFlow allocates the memory of all visible GPUs: each worker gets an equal share of the GPUs, the other tasks
    get none. Empty if nothing has to be set.
    """
    workers = sorted((each for each in tasks if each.job == "worker"), key=lambda each: each.index)
    if not gpus or all(each.job != "ps" for each in tasks):
        return {}
    share = len(gpus) // max(1, len(workers))
    if task.job != "worker" or not share:
        return {VISIBLE: "-1"}
    first = workers.index(task) * share
    return {VISIBLE: ",".join(gpus[first : first + share])}
