"""Whether the nodes of a cluster have room for all tasks of a run. Does not import Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psrun.config import choices
from psrun.config.topology import Task
from psrun.errors import ConfigError, Problem

_DIGITS = 4  # precision of Ray


@dataclass(frozen=True)
class TaskResources:
    """The resources that one task requests."""

    num_cpus: float
    memory_bytes: int
    num_gpus: float = 0

    def bundle(self) -> dict[str, float]:
        """The bundle of a placement group."""
        others = {"memory": self.memory_bytes, "GPU": self.num_gpus}
        return {"CPU": self.num_cpus, **{name: amount for name, amount in others.items() if amount}}

    def options(self) -> dict[str, Any]:
        """The options of an actor."""
        others = {"memory": self.memory_bytes, "num_gpus": self.num_gpus}
        return {"num_cpus": self.num_cpus, **{name: amount for name, amount in others.items() if amount}}


def needs(cluster: choices.Ray, tasks: Iterable[Task]) -> dict[Task, TaskResources]:
    """The resources of each task, from `cluster.resources`."""
    of_job = {task: getattr(cluster.resources, task.job) for task in tasks}
    return {
        task: TaskResources(resources.num_cpus, resources.memory_bytes, resources.num_gpus)
        for task, resources in of_job.items()
    }


def check(wanted: Mapping[Task, TaskResources], nodes: Sequence[Mapping[str, float]]) -> None:
    """Checks that all tasks fit on the otherwise empty nodes: the largest first, each on the first node that fits.

    Tasks are sorted by size in several ways. If none of them works, there is almost certainly no placement.

    Args:
      nodes: total resources of each node, as reported by Ray.

    Raises:
      ConfigError: no placement was found.
    """
    num_cpus = sum(node.get("CPU", 0.0) for node in nodes) or 1.0
    memory_bytes = sum(node.get("memory", 0.0) for node in nodes) or 1.0
    sizes: list[Callable[[TaskResources], tuple[float, ...]]] = [
        lambda need: (need.num_cpus, need.memory_bytes),
        lambda need: (need.memory_bytes, need.num_cpus),
        lambda need: (max(need.num_cpus / num_cpus, need.memory_bytes / memory_bytes),),
    ]
    homeless = [_homeless(wanted, nodes, size) for size in sizes]
    if None not in homeless and homeless[0] is not None:
        task = homeless[0]
        raise ConfigError([Problem("cluster.resources", _no_room(task, wanted[task], wanted, nodes))])


def _homeless(
    wanted: Mapping[Task, TaskResources],
    nodes: Sequence[Mapping[str, float]],
    size: Callable[[TaskResources], tuple[float, ...]],
) -> Task | None:
    """The first task that fits on no node; None if all fit."""
    free = [dict(node) for node in nodes]
    for task in sorted(wanted, key=lambda task: size(wanted[task]), reverse=True):
        need = wanted[task]
        home = next((node for node in free if _fits(need, node)), None)
        if home is None:
            return task
        for name, amount in need.bundle().items():
            home[name] = round(home[name] - amount, _DIGITS)
    return None


def _fits(need: TaskResources, node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in need.bundle().items())


def _no_room(
    task: Task, need: TaskResources, wanted: Mapping[Task, TaskResources], nodes: Sequence[Mapping[str, float]]
) -> str:
    requests = wanted.values()
    whole = TaskResources(
        *(sum(values) for values in zip(*((each.num_cpus, each.memory_bytes, each.num_gpus) for each in requests)))
    )
    kinds = Counter(
        _has(TaskResources(node.get("CPU", 0.0), int(node.get("memory", 0)), node.get("GPU", 0.0)), whole)
        for node in nodes
    )
    has = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return (
        f"no node has room for {task}, which requests {_has(need, whole)}; {len(wanted)} tasks request "
        f"{_has(whole, whole)} in total, but the nodes have {has or 'nothing'}: request less, or start fewer tasks"
    )


def _has(what: TaskResources, request: TaskResources) -> str:
    """As text; GPUs and memory only if some are requested."""
    cpus = f"{what.num_cpus:g} CPUs" + (f", {what.num_gpus:g} GPUs" if request.num_gpus else "")
    return f"{cpus} and {what.memory_bytes:,} bytes" if request.memory_bytes else cpus
