"""Engines that run psrun's tasks: how each is to do it. Not part of the experiment, and so of no group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psrun.config.schema import at_least, one_of


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


@dataclass(frozen=True)
class SlurmJob:
    """A batch job; None leaves the choice to Slurm.

    Attributes:
      time: limit of the job as sbatch takes it, such as 30 (minutes), 2:00:00 or 1-12.
      nodes: over how many the tasks are spread.
      memory_per_cpu: such as 4G.
      warn_s: how long before the limit the run saves a checkpoint and the job is requeued.
      setup: lines of shell to run before the tasks are started, such as 'module load python'.
      options: of sbatch, beside these, such as --constraint=ib.
    """

    time: str | int | None
    partition: str | None
    account: str | None
    qos: str | None
    nodes: int | None
    memory_per_cpu: str | int | None
    setup: list[str]
    options: list[str]
    cpus_per_task: int = at_least(1)
    warn_s: int = at_least(10)


Submission = KubernetesKeys | SlurmJob
# By the cluster that they go with, which is also the name of their node in the configuration.
SUBMISSIONS: dict[str, type] = {"kubernetes": KubernetesKeys, "slurm": SlurmJob}
