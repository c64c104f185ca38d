"""The manifests of a run on Kubernetes, as plain values.

Exit codes: 1 and 2 end the run; pods with 128 or more, and evicted pods, are restarted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml

from psrun.config.run_config import RunConfig
from psrun.config.topology import Task
from psrun.engines.kubernetes import pods
from psrun.engines.kubernetes.settings import KubernetesKeys, PodResources
from psrun.errors import ExitCode

Object = dict[str, Any]
MANAGER = "psrun"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
# 126 and 127 are a shell's codes for a command that cannot be run.
FOR_GOOD = (int(ExitCode.FAILED), int(ExitCode.USAGE), 126, 127)
_SCRATCH = "/tmp"
_LOOKS_EVERY_S = 5
_ENDS_WITHIN_S = 40  # psrun takes up to 25 s for a last checkpoint


def objects(run: RunConfig, settings: KubernetesKeys, overrides: Sequence[str]) -> list[Object]:
    """All objects of a run.

    Args:
      settings: of the run, with a name, an image and a claim.
      overrides: arguments of psrun in every pod, in Hydra's grammar.
    """
    make = _jobset if settings.kind == "jobset" else _indexed_jobs
    return [_network_policy(settings), *make(run, settings, overrides)]


def as_yaml(documents: Sequence[Object]) -> str:
    """Objects for `kubectl apply -f -`, each after a line `---`: texts of several runs may be joined."""
    return yaml.dump_all(documents, Dumper=_Dumper, explicit_start=True, sort_keys=False, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Writes repeated values in full, for readers."""
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Quotes text that another parser may read as another type: kubectl reads 1e3 as a number and y as true."""
        style = None if _SURELY_TEXT.match(data) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_SURELY_TEXT = re.compile(r"[A-Za-z/-]*[A-Za-z/]{2}")
_Dumper.add_representer(str, _Dumper.represent_str)


def _jobset(run: RunConfig, settings: KubernetesKeys, overrides: Sequence[str]) -> list[Object]:
    jobs = [
        {
            "name": pods.part(job),
            "replicas": 1,
            "template": {
                "metadata": {"labels": _labels(settings, job)},
                "spec": _job(run, settings, job, count, overrides),
            },
        }
        for job, count in run.num_tasks.items()
    ]
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": settings.name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["chief"]},
        "failurePolicy": {
            "maxRestarts": settings.max_restarts,
            # A Job that its podFailurePolicy ends for good fails the JobSet without a restart.
            "rules": [
                {"name": "failed_for_good", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                {"name": "too_many_restarts", "action": "RestartJobSet"},
            ],
        },
        "replicatedJobs": jobs,
    }
    return [_object("jobset.x-k8s.io/v1alpha2", "JobSet", settings, spec=spec)]


def _indexed_jobs(run: RunConfig, settings: KubernetesKeys, overrides: Sequence[str]) -> list[Object]:
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # chief and servers wait for each other themselves
        "selector": {INSTANCE: settings.name},
        "ports": [{"name": "grpc", "port": settings.port, "targetPort": settings.port, "protocol": "TCP"}],
    }
    jobs = [
        _object(
            "batch/v1", "Job", settings,
            name=f"{settings.name}-{pods.part(job)}", job=job, spec=_job(run, settings, job, count, overrides),
        )
        for job, count in run.num_tasks.items()
    ]  # fmt: skip
    return [_object("v1", "Service", settings, spec=service), *jobs]


def _network_policy(settings: KubernetesKeys) -> Object:
    """Allows only pods of the run to connect: TensorFlow's servers have no authentication."""
    ours = {"matchLabels": {INSTANCE: settings.name}}
    spec = {"podSelector": ours, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": ours}]}]}
    return _object("networking.k8s.io/v1", "NetworkPolicy", settings, spec=spec)


def _object(
    version: str, kind: str, settings: KubernetesKeys, *, spec: Object, name: str | None = None, job: str = ""
) -> Object:
    metadata: Object = {"name": name or settings.name}
    if settings.namespace is not None:
        metadata["namespace"] = settings.namespace
    metadata["labels"] = _labels(settings, job)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _labels(settings: KubernetesKeys, job: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": MANAGER, INSTANCE: str(settings.name), "app.kubernetes.io/managed-by": MANAGER}
    return labels | ({COMPONENT: pods.part(job)} if job else {})


def _job(run: RunConfig, settings: KubernetesKeys, job: str, count: int, overrides: Sequence[str]) -> Object:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},  # a drained node
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(FOR_GOOD)}},
    ]
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": settings.max_restarts,
        "podFailurePolicy": {"rules": rules},
        "template": _pod(run, settings, job, overrides),
    }


def _pod(run: RunConfig, settings: KubernetesKeys, job: str, overrides: Sequence[str]) -> Object:
    container = _container(settings, job, overrides)
    if job not in ("chief", "evaluator"):  # the others are servers; a guard kills a chief that hangs
        container |= _probes(run, settings.port)
    pod: Object = {
        "subdomain": settings.name,
        "restartPolicy": "Never",  # required by podFailurePolicy; Jobs create new pods
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _ENDS_WITHIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": settings.claim}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    return {"metadata": {"labels": _labels(settings, job)}, "spec": pod}


def _container(settings: KubernetesKeys, job: str, overrides: Sequence[str]) -> Object:
    variables = {
        pods.JOB: job,
        "HOME": _SCRATCH,
        "XDG_CACHE_HOME": f"{_SCRATCH}/cache",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",  # files of the working directory do not replace modules that psrun imports
        "PYTHONUNBUFFERED": "1",
    }
    resources: PodResources = getattr(settings.resources, job)
    container: Object = {
        "name": "psrun",
        "image": settings.image,
        "command": ["python", "-m", "psrun"],  # exit code 1, without a restart, if psrun is missing
        "args": [each.replace("$(", "$$(") for each in overrides],  # $(NAME) would be replaced by a variable of the pod
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {
            part: {name: str(amount) for name, amount in amounts.items()}
            for part, amounts in vars(resources).items()
            if amounts
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "runs", "mountPath": settings.mount_path},
            {"name": "scratch", "mountPath": _SCRATCH},
        ],
    }
    if job != "evaluator":
        container["ports"] = [{"name": "grpc", "containerPort": settings.port, "protocol": "TCP"}]
    return container


def _probes(run: RunConfig, port: int) -> Object:
    """Probes of a server: it listens while the chief waits, and answers gRPC calls; a stopped process only accepts."""
    attempts = math.ceil(run.cluster.connect_timeout_s / _LOOKS_EVERY_S)
    asks = {"exec": {"command": ["python", "-m", "psrun.cluster.probe", str(port)]}}
    return {
        "startupProbe": {"tcpSocket": {"port": port}, "periodSeconds": _LOOKS_EVERY_S, "failureThreshold": attempts},
        "livenessProbe": {**asks, "periodSeconds": 20, "timeoutSeconds": 15, "failureThreshold": 4},
    }


def longest_pod_name(run: RunConfig, settings: KubernetesKeys) -> str:
    """The longest name that Kubernetes derives from the run's name: that of a pod, with five random letters."""
    hosts = [pods.host(settings, Task(job, count - 1)) for job, count in run.num_tasks.items()]
    return f"{max(hosts, key=len)}-xxxxx"
