"""`psrun submit kubernetes`: checks the keys, writes the manifests and submits them."""

from __future__ import annotations

import dataclasses
import re
import secrets
import shlex
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath

import yaml
from rich.console import Console

from psrun.config import choices
from psrun.config.arguments import key_of, quoted
from psrun.config.run_config import RunConfig
from psrun.engines.kubernetes import kubectl, manifests
from psrun.engines.submission import Submission
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, which Services need
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123
_RESOURCE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-\w+|[^/\s]+/[^/\s]+")
_LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253

_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)((?P<exponent>[eE][-+]?\d+)|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)")
_RESERVED = ("/", "/tmp", "/proc", "/dev", "/sys", "/etc", "/usr", "/bin", "/lib")


def submit(submission: Submission, console: Console) -> ExitCode:
    """Prints the manifests of a run, or submits them with kubectl and follows the run.

    Returns:
      The exit code of the run if it is followed, else 0.

    Raises:
      ConfigError: the keys do not describe a run on Kubernetes; with every problem found.
      PsrunError: kubectl is not installed, the cluster rejects an object, or the run cannot start or has ended.
    """
    run = submission.run
    settings = submission.run.submission
    assert isinstance(settings, choices.KubernetesKeys)
    if settings.name is None:
        settings = dataclasses.replace(settings, name=f"psrun-{secrets.token_hex(2)}")
    problems = [*_problems(run, settings), *_of_arguments(submission)]
    if problems:
        raise ConfigError(problems)
    text = _text(submission, settings)
    if submission.dry_run:
        console.file.write(text)
        return ExitCode.DONE
    cluster = kubectl.Kubectl(settings.namespace)
    if cluster.apply(text, settings):
        state = "submitted"
    elif kubectl.is_over(cluster.get(manifests.main_object(settings))):
        raise PsrunError(
            f"{settings.name} was submitted before and has ended: delete its objects ({_delete(settings)}), or choose "
            "another kubernetes.name"
        )
    else:
        state = "was submitted before and is running"
    console.print(f"{settings.name} {state}; its run folder is {run_folder(settings)} in claim {settings.claim}")
    console.print(f"to stop and delete it: {_delete(settings)}", style="dim", soft_wrap=True)
    return kubectl.follow(cluster, settings, console) if submission.follow else ExitCode.DONE


def run_folder(settings: choices.KubernetesKeys) -> str:
    """The path of the run folder in the pods."""
    return str(PurePosixPath(settings.mount_path) / str(settings.name))


def _text(submission: Submission, settings: choices.KubernetesKeys) -> str:
    arguments = [each for each in submission.arguments if key_of(each) != "kubernetes.name"]
    overrides = [
        *arguments,
        f"kubernetes.name={settings.name}",
        f"hydra.run.dir={quoted(Path(run_folder(settings)))}",
    ]
    objects = manifests.objects(submission.run, settings, overrides)
    shown = [each for each in arguments if not each.startswith("cluster=")]
    command = shlex.join(["psrun", "submit", "kubernetes", *shown, f"kubernetes.name={settings.name}"])
    head = "".join(f"# {line}\n" for line in command.splitlines())
    return head + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1000)


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


def _delete(settings: choices.KubernetesKeys) -> str:
    where = [] if settings.namespace is None else ["--namespace", settings.namespace]
    kind = manifests.main_object(settings).partition("/")[0]
    kinds = f"{kind},service,networkpolicy"
    return shlex.join(["kubectl", "delete", kinds, *where, "--selector", f"{manifests.INSTANCE}={settings.name}"])


def _of_arguments(submission: Submission) -> Iterator[Problem]:
    keys = {key_of(each) for each in submission.arguments}
    if "hydra.run.dir" in keys:
        yield Problem("hydra.run.dir", "is kubernetes.mount_path/kubernetes.name here; set these keys instead")
    if submission.run.mode != "train":
        yield Problem("mode", f"is {submission.run.mode}; submit only mode=train, and run other modes here")
    if submission.run.resume is not None:
        message = "is not supported here; submit the run again with its kubernetes.name to resume it"
        yield Problem("resume", message)


def _problems(run: RunConfig, settings: choices.KubernetesKeys) -> Iterator[Problem]:
    if not settings.image or any(mark.isspace() for mark in settings.image):
        problem = "is not given" if settings.image is None else f"is {settings.image!r}"
        message = f"{problem}, must be an image with psrun: kubernetes.image=NAME:TAG"
        yield Problem("kubernetes.image", message + ' (build one with "podman build -f Containerfile")')
    if settings.claim is None:
        message = (
            "is not given, must be a persistent volume claim with the access mode ReadWriteMany: chief and parameter "
            "servers write checkpoints to it"
        )
        yield Problem("kubernetes.claim", message + "; `kubectl get persistentvolumeclaims` lists them")
    elif not _SUBDOMAIN.fullmatch(settings.claim) or len(settings.claim) > _LONGEST_SUBDOMAIN:
        yield Problem("kubernetes.claim", f"is {settings.claim!r}; names of claims {_OF_SMALL_LETTERS}")
    yield from _of_names(run, settings)
    path = PurePosixPath(settings.mount_path)
    if not path.is_absolute() or ".." in path.parts or ":" in str(path) or str(path) in _RESERVED:
        yield Problem("kubernetes.mount_path", f"is {settings.mount_path!r}, must be a dedicated folder, such as /runs")
    if settings.port > 65535:
        yield Problem("kubernetes.port", f"is {settings.port}, must be 65535 or less")
    for field in dataclasses.fields(settings.resources):
        yield from _of_resources(f"kubernetes.resources.{field.name}", getattr(settings.resources, field.name))


_OF_SMALL_LETTERS = "are small letters, digits and - (RFC 1123), and begin and end with a letter or digit"


def _of_names(run: RunConfig, settings: choices.KubernetesKeys) -> Iterator[Problem]:
    name = str(settings.name)
    namespace = settings.namespace
    if not _LABEL.fullmatch(name):
        message = f"is {name!r}, must be small letters, digits and -, with a letter first and none of - last (RFC 1035)"
        yield Problem("kubernetes.name", message)
    longest = manifests.longest_pod_name(run, settings)
    over = len(longest) - _LONGEST_LABEL
    if over > 0:
        message = (
            f"has {len(name)} characters, {over} too many: the name of a pod would be {longest}, of {len(longest)}"
        )
        yield Problem("kubernetes.name", f"{message}, and {_LONGEST_LABEL} are the most")
    if namespace is not None and not (
        _SUBDOMAIN.fullmatch(namespace) and "." not in namespace and len(namespace) <= _LONGEST_LABEL
    ):
        yield Problem("kubernetes.namespace", f"is {namespace!r}; names of namespaces {_OF_SMALL_LETTERS}")


def _of_resources(key: str, resources: choices.PodResources) -> Iterator[Problem]:
    for part, amounts in vars(resources).items():
        for name, value in amounts.items():
            if not _RESOURCE.fullmatch(name):
                message = "is not a resource; use cpu, memory, ephemeral-storage, or a device such as nvidia.com/gpu"
                yield Problem(f"{key}.{part}.{name}", message)
            if quantity(str(value)) is None:
                message = f"is {value!r}, must be a Kubernetes quantity, such as 2, 500m or 4Gi"
                yield Problem(f"{key}.{part}.{name}", message)
    for name in (each for each in resources.requests if each in resources.limits):
        request, limit = (quantity(str(of[name])) for of in (resources.requests, resources.limits))
        if request is not None and limit is not None and request > limit:
            message = f"is {resources.requests[name]}, more than the limit of {resources.limits[name]}"
            yield Problem(f"{key}.requests.{name}", message)


def quantity(text: str) -> Decimal | None:
    """The amount of a quantity such as 500m, 2 or 1.5Gi; None if `text` is not a quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number = Decimal(match["number"])
    suffix = match["suffix"] or ""
    if match["exponent"]:
        return Decimal(match["number"] + match["exponent"])
    return number * (2 ** _BINARY[suffix] if suffix in _BINARY else Decimal(10) ** _SUFFIXES[suffix])
