"""The node `kubernetes` of the configuration: how the pods of a run are made. No part of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psrun.config.schema import at_least, one_of


@dataclass(frozen=True)
class PodResources:
    """Requests and limits of a pod: Kubernetes quantities by name, such as `cpu: 2, memory: 4Gi`."""

    requests: dict[str, Any]
    limits: dict[str, Any]


@dataclass(frozen=True)
class ResourcesByJob:
    chief: PodResources
    worker: PodResources
    ps: PodResources
    evaluator: PodResources


@dataclass(frozen=True)
class KubernetesKeys:
    """How Kubernetes runs the tasks.

    Attributes:
      kind: the kind of objects to create.
      name: name of all objects and of the run folder; None for a random name at submission.
      namespace: None for the current namespace of kubectl.
      image: image with psrun and the code and data that the experiment names.
      claim: existing persistent volume claim with the access mode ReadWriteMany.
      mount_path: mount point of the volume in pods; the run folder is MOUNT_PATH/NAME.
      port: port of each task in its pod.
      user: user and group id of the pods.
      max_restarts: restarts of each job and, with kind=jobset, of the whole set.
    """

    resources: ResourcesByJob
    name: str | None
    namespace: str | None
    image: str | None
    claim: str | None
    mount_path: str
    kind: str = one_of("jobset", "indexed_jobs")
    port: int = at_least(1024)
    user: int = at_least(1)
    max_restarts: int = at_least(0)
