"""`cluster=ray`: its keys in the configuration, and its answers to the core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from psrun.config import topology
from psrun.config.clusters import ClusterRun, Local
from psrun.config.schema import at_least, one_of
from psrun.errors import Problem


@dataclass(frozen=True)
class RayTaskResources:
    """The resources that Ray reserves for a task.

    Attributes:
      num_cpus: logical CPUs of Ray; Ray does not limit the actual use.
      memory_bytes: 0 for no reservation.
      num_gpus: the number of GPUs visible to the task.
    """

    num_cpus: float = at_least(0.001)
    memory_bytes: int = at_least(0)
    num_gpus: float = at_least(0, default=0)


@dataclass(frozen=True)
class RayResources:
    """The resources that Ray reserves for a task of each job."""

    chief: RayTaskResources
    worker: RayTaskResources
    ps: RayTaskResources
    evaluator: RayTaskResources


@dataclass(frozen=True)
class Ray(Local):
    """Like Local, on the nodes of a Ray cluster.

    Attributes:
      address: address of the Ray cluster: 'auto' for the cluster of this machine, HOST:PORT, or None to start a private
        one on this machine.
      placement_group: Ray's placement strategy, in lower case.
    """

    implementation: ClassVar[str] = "psrun.engines.ray:open_backend"
    address: str | None = field(kw_only=True)
    resources: RayResources = field(kw_only=True)
    placement_group: str = one_of("spread", "pack")

    @classmethod
    def where(cls, process: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        address = config.get("cluster.address")
        if address in (None, "auto"):
            return super().where(process, config)
        return str(address)

    @property
    def spans_machines(self) -> bool:
        return self.address is not None

    def problems(self, config: ClusterRun) -> list[Problem]:
        if self.address is None:
            return []
        found = []
        if self.address != "auto" and not topology.is_address(self.address):
            message = f"is {self.address!r}, must be auto, HOST:PORT of the head node, or null"
            if self.address.startswith("ray:"):
                message += "; a ray:// client may be on another network"
            found.append(Problem("cluster.address", message))
        if self.isolate is True:
            where = f"cluster.address={self.address}"
            message = f"true makes the servers unreachable from the nodes of {where}; set it to auto"
            found.append(Problem("cluster.isolate", message))
        return found
