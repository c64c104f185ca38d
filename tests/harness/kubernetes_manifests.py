"""What tests of Kubernetes share: manifests as `psrun submit kubernetes` makes them, and what a pod is started with."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

KINDS = ("jobset", "indexed_jobs")
GIVEN = ("kubernetes.image=example/psrun:1", "kubernetes.claim=runs", "kubernetes.name=run-1")


def submitted(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `psrun submit kubernetes ARGUMENTS`, given in `folder`, came to."""
    command = [sys.executable, "-m", "psrun", "submit", "kubernetes", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=environment or None
    )


def manifests(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The objects that `psrun submit kubernetes` prints."""
    done = submitted(folder, *GIVEN, *arguments)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@dataclass(frozen=True)
class Pod:
    """One pod as Kubernetes would start it.

    Attributes:
      host: its name, as its headless Service makes it known.
      environment: set by the manifest, and by the controller of Jobs.
    """

    job: str
    index: int
    host: str
    container: dict[str, Any]
    environment: dict[str, str]


def pods(objects: list[dict[str, Any]]) -> list[Pod]:
    """What the controllers make of the objects: names of hosts and environment, as their documentation has them.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/ (Indexed: <job>-<index>, JOB_COMPLETION_INDEX),
    https://jobset.sigs.k8s.io/docs/concepts/ (<jobset>-<replicated job>-<job>-<pod>.<subdomain>)
    """
    created: list[Pod] = []
    for each in objects:
        name, spec = each["metadata"]["name"], each["spec"]
        if each["kind"] == "Job":
            created += _of_job(name, spec)
        elif each["kind"] == "JobSet":
            for replicated in spec["replicatedJobs"]:
                for number in range(replicated["replicas"]):
                    created += _of_job(f"{name}-{replicated['name']}-{number}", replicated["template"]["spec"])
    return created


def _of_job(name: str, spec: dict[str, Any]) -> list[Pod]:
    assert spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    variables = {item["name"]: item["value"] for item in container["env"]}
    job = variables["PSRUN_JOB"]
    return [
        Pod(
            job,
            index,
            f"{name}-{index}.{pod['subdomain']}",
            container,
            variables | {"JOB_COMPLETION_INDEX": str(index)},
        )
        for index in range(spec["completions"])
    ]
