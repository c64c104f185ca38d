"""A run on Kubernetes as its run folder names it, for commands that have the folder: the log of a task, and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from psrun.config import choices, schema
from psrun.config.topology import Task
from psrun.engines.kubernetes import manifests, pods
from psrun.engines.kubernetes.kubectl import Kubectl
from psrun.errors import PsrunError
from psrun.results import reading
from psrun.results.run_folder import CONFIG

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"  # a label of each pod of an Indexed Job


def is_one(folder: Path) -> bool:
    """Whether the run in a folder runs in pods."""
    return _settings(folder) is not None


def log(folder: Path, task: str) -> str:
    """What the newest pod of a task has written so far. Raises PsrunError if there is no such pod."""
    settings = _required(folder)
    named = Task.named(task)
    assert named is not None
    kubectl = Kubectl(settings.namespace)
    selector = f"{_selector(settings, named.job)},{_COMPLETION_INDEX}={named.index}"
    found = (kubectl.get("pods", "--selector", selector) or {"items": []})["items"]
    if not found:
        raise PsrunError(f"there is no pod of {task} ({selector}), and no log of it in {folder}")
    newest = max(found, key=lambda each: each["metadata"]["creationTimestamp"])
    return kubectl.log(newest["metadata"]["name"])


def stop(folder: Path, *, now: bool) -> None:
    """Ends a run and deletes its objects: first the chief's, which saves while its parameter servers still serve.

    Args:
      now: whether it ends without saving.

    Raises:
      PsrunError: kubectl is not installed, or the cluster does not delete the objects.
    """
    settings = _required(folder)
    kubectl = Kubectl(settings.namespace)
    main = manifests.main_object(settings)
    objects = [f"{main.partition('/')[0]},service,networkpolicy", "--selector", _selector(settings)]
    if now:  # first what would start the pods again
        kubectl.delete(*objects, "--cascade=background")
        kubectl.delete("pods", "--selector", _selector(settings), "--grace-period=0", "--force")
        return
    if settings.kind == "jobset":  # which starts a Job again that is deleted, but no pod so soon
        kubectl.delete("pods", "--selector", _selector(settings, "chief"))
    else:
        kubectl.delete(main)
    kubectl.delete(*objects)


def _selector(settings: choices.KubernetesKeys, job: str | None = None) -> str:
    of_job = "" if job is None else f",{manifests.COMPONENT}={pods.part(job)}"
    return f"{manifests.INSTANCE}={settings.name}{of_job}"


def _required(folder: Path) -> choices.KubernetesKeys:
    settings = _settings(folder)
    if settings is None:
        raise PsrunError(f"{folder / CONFIG} names no run on Kubernetes")
    return settings


def _settings(folder: Path) -> choices.KubernetesKeys | None:
    """The keys of Kubernetes in the configuration of a run; None if the run is elsewhere."""
    config, _ = reading.loaded(folder / CONFIG, _yaml)
    if reading.mapping(config.get("cluster")).get("kind") != "kubernetes":
        return None
    settings = schema.read(
        choices.KubernetesKeys, reading.mapping(config.get("kubernetes")), key="kubernetes", problems=[]
    )
    return settings if settings is not None and settings.name is not None else None


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
