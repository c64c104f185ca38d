"""Engines that run psrun's tasks: how each is to do it. Not part of the experiment, and so of no group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psrun.schema import at_least, one_of


@dataclass(frozen=True)
class PodResources:
    """What a pod asks for and may use at most: quantities of Kubernetes by name, such as `cpu: 2, memory: 4Gi`."""

    requests: dict[str, Any]
    limits: dict[str, Any]


@dataclass(frozen=True)
class ResourcesByJob:
    chief: PodResources
    worker: PodResources
    ps: PodResources
    evaluator: PodResources
    data_dispatcher: PodResources
    data_worker: PodResources


@dataclass(frozen=True)
class KubernetesKeys:
    """How Kubernetes runs the tasks.

    Attributes:
      kind: which objects are made.
      name: of all objects, and with it of the run folder; None for one made up when it is submitted.
      namespace: None for the one that kubectl is set to.
      image: with psrun and all that the experiment names.
      claim: of an existing persistent volume that all pods can write to at the same time (ReadWriteMany).
      mount_path: where pods see that volume; the run folder is MOUNT_PATH/NAME.
      port: on which each task serves, in a pod of its own.
      user: id of the user and of the group that the pods run as.
      max_restarts: of the pods of one job and, where the kind can, of everything.
    """

    resources: ResourcesByJob
    name: str | None
    namespace: str | None
    image: str | None
    claim: str | None
    mount_path: str
    kind: str = one_of("jobset", "indexed_jobs", "tfjob")
    port: int = at_least(1024)
    user: int = at_least(1)
    max_restarts: int = at_least(0)


SubmissionKeys = KubernetesKeys
