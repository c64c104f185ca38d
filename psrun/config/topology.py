"""The tasks of a cluster of several processes as data: their addresses, the task of this process, and their GPUs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.errors import ConfigError, Problem

JOBS = ("chief", "worker", "ps", "evaluator")
_MASTER = "master"  # the name of the chief in TF_CONFIG before TensorFlow 2
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_GPU = re.compile(r"nvidia(\d+)")


@dataclass(frozen=True, order=True)
class Task:
    """A job and a task index in it."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}-{self.index}"

    @classmethod
    def named(cls, name: str) -> Task | None:
        """The task with the string form `name`; None if there is none."""
        job, _, index = name.rpartition("-")
        return cls(job, int(index)) if job in JOBS and index.isdecimal() else None


CHIEF = Task("chief", 0)
EVALUATOR = Task("evaluator", 0)


@dataclass(frozen=True)
class Topology:
    """The addresses of all serving tasks, and the task of this process.

    `addresses` never holds the evaluator: TensorFlow would wait for it forever.
    """

    addresses: Mapping[Task, str]
    me: Task

    def servers(self) -> dict[Task, str]:
        """Workers and parameter servers, with their addresses."""
        return {task: address for task, address in self.addresses.items() if task.job in ("worker", "ps")}

    def of(self, job: str) -> list[Task]:
        return sorted(task for task in self.addresses if task.job == job)

    def spec(self) -> dict[str, dict[int, str]]:
        """The addresses in the format of `tf.train.ClusterSpec`."""
        spec: dict[str, dict[int, str]] = {}
        for task, address in self.addresses.items():
            spec.setdefault(task.job, {})[task.index] = address
        return spec


def from_tf_config(text: str | None, *, needed: Sequence[str] = ("worker", "ps")) -> Topology:
    """The topology of the environment variable TF_CONFIG.

    Accepts the format of TFJob (an `evaluator` in the cluster, an `environment`, `worker` as a partial mapping of
    indexes), `master` for `chief`, and the format of TensorFlow's tutorial for the evaluator, which is alone in the
    cluster or has no cluster.

    Args:
      needed: jobs that must have a task.

    Raises:
      ConfigError: lists all problems.
    """
    if not text:
        raise ConfigError(
            [Problem("TF_CONFIG", "is not set; cluster=tf_config reads the cluster and the task from it")]
        )
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError([Problem("TF_CONFIG", f"is not JSON ({error}): {text[:200]}")]) from error
    task = value.get("task") if isinstance(value, Mapping) else None
    alone = isinstance(task, Mapping) and task.get("type") == EVALUATOR.job
    cluster = value.get("cluster", {} if alone else None) if isinstance(value, Mapping) else None
    if not isinstance(cluster, Mapping):
        raise ConfigError([Problem("TF_CONFIG", f"must be an object with 'cluster' and 'task', is: {text[:200]}")])
    if not isinstance(task, Mapping) or "type" not in task:
        raise ConfigError([Problem("TF_CONFIG.task", f"is {task!r}, must have 'type' and 'index'")])
    index = task.get("index", 0)
    if isinstance(index, str) and index.isdigit():  # shells and templates write it as text
        index = int(index)
    keys = {"key": "TF_CONFIG.cluster", "task_key": "TF_CONFIG.task"}
    return make(cluster, str(task["type"]), index, **keys, needed=needed)


def make(
    cluster: Mapping[str, Any],
    job: str,
    index: Any,
    *,
    key: str,
    task_key: str,
    needed: Sequence[str] = ("worker", "ps"),
) -> Topology:
    """The topology of a mapping of addresses and a task.

    Args:
      cluster: job to addresses, as a list or as a mapping of index to address.
      key, task_key: their configuration keys, for messages.
      needed: jobs that must have a task, unless this process is the evaluator, which never connects to them.

    Raises:
      ConfigError: lists all problems.
    """
    problems: list[Problem] = []
    addresses: dict[Task, str] = {}
    for name, entries in cluster.items():
        addresses.update(_addresses(name, entries, key, problems))
    problems += _check_duplicates(addresses, key)
    if job != EVALUATOR.job:
        problems += _check_jobs(addresses, needed, key)
    me = Task("chief" if job == _MASTER else job, index)
    if me.job not in JOBS:
        problems.append(Problem(f"{task_key}.type", f"is {job!r}, must be one of {', '.join(JOBS)}"))
    elif not isinstance(index, int):
        problems.append(Problem(f"{task_key}.index", f"is {index!r}, must be an integer"))
    elif me.job in ("worker", "ps") and me not in addresses:
        indices = sorted(task.index for task in addresses if task.job == me.job)
        message = f"is {index}, must be one of {indices} as in {key}.{job}"
        problems.append(Problem(f"{task_key}.index", message))
    elif me.job == "chief" and index != 0:
        problems.append(Problem(f"{task_key}.index", f"is {index}, must be 0: there is one chief"))
    if problems:
        raise ConfigError(problems)
    serving = {task: where for task, where in addresses.items() if task.job != EVALUATOR.job}
    return Topology(serving, me)


def _check_duplicates(addresses: Mapping[Task, str], key: str) -> Iterator[Problem]:
    """Addresses that several tasks have."""
    tasks: dict[str, list[str]] = {}
    for task, where in addresses.items():
        tasks.setdefault(where, []).append(str(task))
    for where, several in tasks.items():
        if len(several) > 1:
            both = " and ".join(several)
            yield Problem(key, f"{where} is the address of {both}; give each task its own address")


def _check_jobs(addresses: Mapping[Task, str], needed: Sequence[str], key: str) -> Iterator[Problem]:
    """Needed jobs without a task."""
    jobs = {task.job for task in addresses}
    for job in needed:
        if job not in jobs:
            yield Problem(f"{key}.{job}", "is missing: parameter server training needs at least one")


def _addresses(name: str, entries: Any, key: str, problems: list[Problem]) -> list[tuple[Task, str]]:
    job = "chief" if name == _MASTER else name
    where = f"{key}.{name}"
    if job not in JOBS:
        problems.append(Problem(where, f"is not a job; jobs are {', '.join(JOBS)}"))
        return []
    if isinstance(entries, Mapping):
        pairs = list(entries.items())
    elif isinstance(entries, Sequence) and not isinstance(entries, str):
        pairs = list(enumerate(entries))
    else:
        problems.append(Problem(where, f"is {entries!r}, must be a list of addresses"))
        return []
    addresses = []
    for index, address in pairs:
        if not str(index).isdigit():
            problems.append(Problem(where, f"{index!r} is not an index; use 0, 1, ..."))
        elif not is_address(address):
            problems.append(Problem(f"{where}[{index}]", f"is {address!r}, must be HOST:PORT"))
        else:
            addresses.append((Task(job, int(index)), address))
    return addresses


def is_address(address: Any) -> bool:
    """Whether `address` has the form HOST:PORT."""
    if not isinstance(address, str):
        return False
    host, colon, port = address.rpartition(":")
    return bool(host and colon) and "/" not in host and port.isdigit() and 0 < int(port) < 65536


def set_aside(addresses: Mapping[Task, str]) -> Task:
    """The worker that evaluates with evaluation=sidecar_thread: the last one."""
    return max(task for task in addresses if task.job == "worker")


def with_one_set_aside(whole: Topology) -> Topology:
    """The cluster without the evaluating worker, which does not join it.

    Raises:
      ConfigError: no worker would be left to train.
    """
    if len(whole.of("worker")) < 2:
        message = "'sidecar_thread' uses the last worker to evaluate and needs at least one more; list all workers"
        raise ConfigError([Problem("evaluation", message)])
    aside = set_aside(whole.addresses)
    training = {task: where for task, where in whole.addresses.items() if task != aside}
    return Topology(training, whole.me)


def tf_config(addresses: Mapping[Task, str], me: Task) -> str:
    """TF_CONFIG for `me`."""
    cluster: dict[str, list[str]] = {}
    for task in sorted(addresses):
        cluster.setdefault(task.job, []).append(addresses[task])
    return json.dumps({"cluster": cluster, "task": {"type": me.job, "index": me.index}})


def gpus_here(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """The CUDA names of the GPUs that are visible to a process with this environment."""
    if VISIBLE_GPUS in environment:
        names = [name.strip() for name in environment[VISIBLE_GPUS].split(",")]
        return names[: names.index("-1")] if "-1" in names else [name for name in names if name]
    matches = (_GPU.fullmatch(path.name) for path in devices.glob("nvidia*"))
    return sorted((match[1] for match in matches if match), key=int)


def gpus_of_task(task: Task, tasks: Iterable[Task], gpus: list[str]) -> dict[str, str]:
    """Environment variables of a task of parameter server training, if all tasks are on one machine with `gpus`.

    TensorFlow allocates the memory of all visible GPUs: each worker gets an equal share of the GPUs, the other tasks
    get none. Empty if nothing has to be set.
    """
    workers = sorted((each for each in tasks if each.job == "worker"), key=lambda each: each.index)
    if not gpus or all(each.job != "ps" for each in tasks):
        return {}
    share = len(gpus) // max(1, len(workers))
    if task.job != "worker" or not share:
        return {VISIBLE_GPUS: "-1"}
    first = workers.index(task) * share
    return {VISIBLE_GPUS: ",".join(gpus[first : first + share])}
