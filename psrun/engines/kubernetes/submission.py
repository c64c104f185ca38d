"""`psrun submit kubernetes`: prints the manifests of a run for kubectl."""

from __future__ import annotations

import dataclasses
import secrets
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from rich.console import Console

from psrun.config.groups import key_of, quoted
from psrun.engines.kubernetes import checks, manifests
from psrun.engines.kubernetes.settings import KubernetesKeys
from psrun.engines.submission import Submission
from psrun.errors import ConfigError, ExitCode, Problem

_DELETED_KINDS = {"jobset": "jobset,networkpolicy", "indexed_jobs": "job,service,networkpolicy"}


def submit(submission: Submission) -> ExitCode:
    """Prints the manifests to standard output, and the commands of kubectl to standard error.

    Raises:
      ConfigError: the keys do not describe a run on Kubernetes; with every problem found.
    """
    run = submission.run
    settings = run.submission
    assert isinstance(settings, KubernetesKeys)
    if settings.name is None:
        settings = dataclasses.replace(settings, name=f"psrun-{secrets.token_hex(2)}")
    problems = [*checks.problems_of(run, settings), *_check_arguments(submission)]
    if problems:
        raise ConfigError(problems)
    sys.stdout.write(_text(submission, settings))
    _print_hints(settings)
    return ExitCode.DONE


def kubectl_commands(settings: KubernetesKeys) -> dict[str, str]:
    """The shell commands for a run that was applied, by what they are for.

    Args:
      settings: of the run, with a name.
    """
    kubectl = "kubectl"
    if settings.namespace is not None:
        kubectl = f"kubectl --namespace {shlex.quote(settings.namespace)}"
    whole = f"{manifests.INSTANCE}={settings.name}"
    chief = f"{whole},{manifests.COMPONENT}=chief"
    kinds = _DELETED_KINDS[settings.kind]
    # The chief ends first: it saves a checkpoint while the parameter servers still serve. To wait
    # for all pods (foreground) lets the next run of that name start alone.
    delete = (
        f"{kubectl} delete pods --selector {chief} && {kubectl} delete {kinds} --selector {whole} --cascade=foreground"
    )
    return {
        "state": f"{kubectl} get pods --selector {whole}",
        "log": f"{kubectl} logs --follow --tail=-1 --selector {chief}",
        "delete": delete,
    }


def _print_hints(settings: KubernetesKeys) -> None:
    folder = _run_folder(settings)
    lines = [f"run {settings.name}; its run folder is {folder} in claim {settings.claim}"]
    for purpose, command in kubectl_commands(settings).items():
        lines.append(f"{purpose}: {command}")
    lines.append("resume: delete, then submit and apply again with the same kubernetes.name")
    console = Console(stderr=True, highlight=False)
    console.print("\n".join(lines), style="dim", markup=False, soft_wrap=True)


def _text(submission: Submission, settings: KubernetesKeys) -> str:
    """The manifests as YAML, after a comment with the command that makes them."""
    name = f"kubernetes.name={settings.name}"
    arguments = [each for each in submission.arguments if key_of(each) != "kubernetes.name"]
    folder = f"hydra.run.dir={quoted(Path(_run_folder(settings)))}"
    objects = manifests.objects(submission.run, settings, [*arguments, name, folder])
    shown = [each for each in arguments if not each.startswith("cluster=")]
    command = shlex.join(["psrun", "submit", "kubernetes", *shown, name])
    comment = "".join(f"# {line}\n" for line in command.splitlines())
    return comment + manifests.as_yaml(objects)


def _run_folder(settings: KubernetesKeys) -> str:
    """The path of the run folder in the pods."""
    return str(PurePosixPath(settings.mount_path) / str(settings.name))


def _check_arguments(submission: Submission) -> Iterator[Problem]:
    if "hydra.run.dir" in map(key_of, submission.arguments):
        message = "is kubernetes.mount_path/kubernetes.name here; set these keys instead"
        yield Problem("hydra.run.dir", message)
    if submission.run.mode != "train":
        message = f"is {submission.run.mode}; submit only mode=train, and run other modes here"
        yield Problem("mode", message)
    if submission.run.resume is not None:
        message = "is not supported here; submit the run again with its kubernetes.name to resume it"
        yield Problem("resume", message)
    if submission.dry_run:
        message = "is for submit slurm; submit kubernetes only prints manifests: remove it"
        yield Problem("--dry-run", message)
    if not submission.follow:
        message = "is for submit slurm; submit kubernetes only prints manifests: remove it"
        yield Problem("--no-follow", message)
