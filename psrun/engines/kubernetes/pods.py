"""Tasks as pods of Kubernetes: their host names and addresses, and the task of this pod."""

from __future__ import annotations

from collections.abc import Mapping

from psrun.config import topology
from psrun.config.clusters import ClusterRun
from psrun.config.topology import JOBS, Task, Topology
from psrun.engines.kubernetes.settings import KubernetesKeys
from psrun.errors import ConfigError, Problem

JOB = "PSRUN_JOB"  # set in each pod by the manifest
INDEX = "JOB_COMPLETION_INDEX"  # set in each pod by Kubernetes itself, for Jobs in Indexed mode


def part(job: str) -> str:
    """The job as part of a Kubernetes name."""
    return job.replace("_", "-")


def host(settings: KubernetesKeys, task: Task) -> str:
    """The host name of a task's pod: the name of its Job and its index."""
    if settings.kind == "jobset":  # with the index of the Job in the JobSet, of which there is one per job of psrun
        return f"{settings.name}-{part(task.job)}-0-{task.index}"
    return f"{settings.name}-{part(task.job)}-{task.index}"


def address(settings: KubernetesKeys, task: Task) -> str:
    """HOST:PORT. The headless Service that resolves the host name has the name of the run."""
    return f"{host(settings, task)}.{settings.name}:{settings.port}"


def from_environment(run: ClusterRun, environment: Mapping[str, str]) -> Topology:
    """The topology of the run's pods, with the task of this pod.

    Raises:
      ConfigError: the process is not in a pod, or the variables are inconsistent.
    """
    settings = run.submission
    assert isinstance(settings, KubernetesKeys)
    if JOB not in environment:
        message = "is not set: this is not a pod of a run; use `psrun submit kubernetes`, or cluster=local"
        raise ConfigError([Problem(JOB, message)])
    job = environment[JOB]
    index = environment.get(INDEX, "")
    problems = []
    if job not in JOBS:
        problems.append(Problem(JOB, f"is {job!r}, must be one of {', '.join(JOBS)}"))
    if not index.isdecimal():
        problems.append(Problem(INDEX, f"is {index!r}, must be a number: the pod must be of a Job in Indexed mode"))
    if settings.name is None:
        problems.append(
            Problem("kubernetes.name", "is required in a pod; set kubernetes.name to the name of its objects")
        )
    if problems:
        raise ConfigError(problems)
    listed = {
        job: [address(settings, Task(job, number)) for number in range(count)]
        for job, count in run.num_tasks.items()
        if job != "evaluator"
    }
    return topology.make(listed, job, int(index), key="cluster", task_key=JOB)
