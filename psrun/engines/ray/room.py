"""Whether the nodes of a cluster have room for all tasks of a run. Knows nothing of Ray but its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psrun import choices
from psrun.cluster.topology import Task
from psrun.errors import ConfigError, Problem


@dataclass(frozen=True)
class Need:
    """What one task asks for."""

    num_cpus: float
    memory_bytes: int

    def bundle(self) -> dict[str, float]:
        """As a placement group takes it."""
        return {"CPU": self.num_cpus, **({"memory": self.memory_bytes} if self.memory_bytes else {})}

    def options(self) -> dict[str, Any]:
        """As an actor takes it."""
        return {"num_cpus": self.num_cpus, **({"memory": self.memory_bytes} if self.memory_bytes else {})}


def needs(cluster: choices.Ray, tasks: Iterable[Task]) -> dict[Task, Need]:
    """What each task asks for, as `cluster.resources` says of its job."""
    of_job = {task: getattr(cluster.resources, task.job) for task in tasks}
    return {task: Need(asked.num_cpus, asked.memory_bytes) for task, asked in of_job.items()}


def check(wanted: Mapping[Task, Need], nodes: Sequence[Mapping[str, float]]) -> None:
    """Finds room for all, were nobody else there: the greatest first, each where it fits first.

    Args:
      nodes: what each has in all, as Ray says it.

    Raises:
      ConfigError: there is none.
    """
    left = [dict(node) for node in nodes]
    for task, need in sorted(wanted.items(), key=lambda item: (-item[1].num_cpus, -item[1].memory_bytes)):
        home = next((node for node in left if _fits(need, node)), None)
        if home is None:
            raise ConfigError([Problem("cluster.resources", _no_room(task, need, wanted, nodes))])
        for name, asked in need.bundle().items():
            home[name] -= asked


def _fits(need: Need, node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) >= asked for name, asked in need.bundle().items())


def _no_room(task: Task, need: Need, wanted: Mapping[Task, Need], nodes: Sequence[Mapping[str, float]]) -> str:
    whole = Need(sum(each.num_cpus for each in wanted.values()), sum(each.memory_bytes for each in wanted.values()))
    kinds = Counter(_has(Need(node.get("CPU", 0.0), int(node.get("memory", 0))), whole) for node in nodes)
    has = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return (
        f"there is no room for {task}, which asks for {_has(need, whole)}; {len(wanted)} tasks ask for "
        f"{_has(whole, whole)} in all, and the nodes have {has or 'nothing'}: ask for less, or start fewer tasks"
    )


def _has(what: Need, asked: Need) -> str:
    """In words; of memory only where some is asked for."""
    cpus = f"{what.num_cpus:g} CPUs"
    return f"{cpus} and {what.memory_bytes:,} bytes" if asked.memory_bytes else cpus
