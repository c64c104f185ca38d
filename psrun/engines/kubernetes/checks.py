"""Whether the keys under `kubernetes` describe objects that Kubernetes accepts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

from psrun.config.run_config import RunConfig
from psrun.engines.kubernetes import manifests
from psrun.engines.kubernetes.settings import KubernetesKeys, PodResources
from psrun.errors import Problem

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, which Services need
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123
_LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253
_SUBDOMAIN_RULE = "are small letters, digits and - (RFC 1123), and begin and end with a letter or digit"

_RESOURCE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-\w+|[^/\s]+/[^/\s]+")
_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)((?P<exponent>[eE][-+]?\d+)|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)")

_RESERVED = ("/", "/tmp", "/proc", "/dev", "/sys", "/etc", "/usr", "/bin", "/lib")
_HIGHEST_PORT = 65535


def problems_of(run: RunConfig, settings: KubernetesKeys) -> list[Problem]:
    """All problems of the keys.

    Args:
      settings: of the run, with a name.
    """
    problems = [
        *_check_image(settings.image),
        *_check_claim(settings.claim),
        *_check_name(run, settings),
        *_check_namespace(settings.namespace),
        *_check_mount_path(settings.mount_path),
        *_check_port(settings.port),
    ]
    for field in dataclasses.fields(settings.resources):
        key = f"kubernetes.resources.{field.name}"
        problems += _check_resources(key, getattr(settings.resources, field.name))
    return problems


def quantity(text: str) -> Decimal | None:
    """The amount of a quantity such as 500m, 2 or 1.5Gi; None if `text` is not a quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    if match["exponent"]:
        return Decimal(match["number"] + match["exponent"])
    number = Decimal(match["number"])
    suffix = match["suffix"] or ""
    if suffix in _BINARY:
        return number * 2 ** _BINARY[suffix]
    return number * Decimal(10) ** _SUFFIXES[suffix]


def _check_image(image: str | None) -> Iterator[Problem]:
    if image is None:
        problem = "is not given"
    elif not image or any(character.isspace() for character in image):
        problem = f"is {image!r}"
    else:
        return
    message = f"{problem}, must be an image with psrun: kubernetes.image=NAME:TAG"
    yield Problem("kubernetes.image", message + ' (build one with "podman build -f Containerfile")')


def _check_claim(claim: str | None) -> Iterator[Problem]:
    if claim is None:
        message = (
            "is not given, must be a persistent volume claim with the access mode ReadWriteMany: "
            "chief and parameter servers write checkpoints to it; "
            "`kubectl get persistentvolumeclaims` lists them"
        )
        yield Problem("kubernetes.claim", message)
    elif not _SUBDOMAIN.fullmatch(claim) or len(claim) > _LONGEST_SUBDOMAIN:
        yield Problem("kubernetes.claim", f"is {claim!r}; names of claims {_SUBDOMAIN_RULE}")


def _check_name(run: RunConfig, settings: KubernetesKeys) -> Iterator[Problem]:
    name = str(settings.name)
    if not _LABEL.fullmatch(name):
        message = f"is {name!r}, must be small letters, digits and -, begin with a letter and not end with - (RFC 1035)"
        yield Problem("kubernetes.name", message)
    longest = manifests.longest_pod_name(run, settings)
    over = len(longest) - _LONGEST_LABEL
    if over > 0:
        message = (
            f"has {len(name)} characters, {over} too many: the name of a pod would be {longest}, "
            f"of {len(longest)}, and {_LONGEST_LABEL} are the most"
        )
        yield Problem("kubernetes.name", message)


def _check_namespace(namespace: str | None) -> Iterator[Problem]:
    if namespace is None:
        return
    is_label = _SUBDOMAIN.fullmatch(namespace) and "." not in namespace
    if not is_label or len(namespace) > _LONGEST_LABEL:
        yield Problem("kubernetes.namespace", f"is {namespace!r}; names of namespaces {_SUBDOMAIN_RULE}")


def _check_mount_path(text: str) -> Iterator[Problem]:
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or ":" in text or str(path) in _RESERVED:
        yield Problem("kubernetes.mount_path", f"is {text!r}, must be a dedicated folder, such as /runs")


def _check_port(port: int) -> Iterator[Problem]:
    if port > _HIGHEST_PORT:
        yield Problem("kubernetes.port", f"is {port}, must be {_HIGHEST_PORT} or less")


def _check_resources(key: str, resources: PodResources) -> Iterator[Problem]:
    yield from _check_amounts(f"{key}.requests", resources.requests)
    yield from _check_amounts(f"{key}.limits", resources.limits)
    for name, requested in resources.requests.items():
        if name not in resources.limits:
            continue
        request = quantity(str(requested))
        limit = quantity(str(resources.limits[name]))
        if request is None or limit is None:
            continue
        if request > limit:
            message = f"is {requested}, more than the limit of {resources.limits[name]}"
            yield Problem(f"{key}.requests.{name}", message)


def _check_amounts(key: str, amounts: Mapping[str, Any]) -> Iterator[Problem]:
    for name, amount in amounts.items():
        if not _RESOURCE.fullmatch(name):
            message = "is not a resource; use cpu, memory, ephemeral-storage, or a device such as nvidia.com/gpu"
            yield Problem(f"{key}.{name}", message)
        if quantity(str(amount)) is None:
            message = f"is {amount!r}, must be a Kubernetes quantity, such as 2, 500m or 4Gi"
            yield Problem(f"{key}.{name}", message)
