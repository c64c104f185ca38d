"""The command kubectl: creates the objects of a run, and shows the log of the chief until the run has ended."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from psrun.config import choices
from psrun.engines.kubernetes import manifests
from psrun.errors import ExitCode, PsrunError

_POLL_S = 2.0
_ANSWERS_WITHIN_S = 60.0
_ATTEMPTS = 5
_HOPELESS = {  # reasons of a container that does not run which do not resolve themselves
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun",
}  # fmt: skip
_CHECK = "kubectl cannot reach a cluster: check `kubectl cluster-info` and KUBECONFIG"
_HINTS = {
    **dict.fromkeys(("connection refused", "no such host", "Unable to connect"), _CHECK),
    "no matches for kind": "kubernetes.kind=jobset requires the operator of JobSet; indexed_jobs requires none",
    "immutable": "A run of that name exists: delete it, or set another kubernetes.name",
}


@dataclass(frozen=True)
class Chief:
    """State of the chief's newest pod.

    Attributes:
      pod: name of the pod.
      code: exit code once it has ended; -1 if it was evicted without one.
      waits: why it is not running yet, in Kubernetes' words.
      hopeless: whether it waits for something that does not resolve itself.
    """

    pod: str
    running: bool = False
    code: int | None = None
    waits: str = ""
    hopeless: bool = False


class Kubectl:
    """The command kubectl, with the namespace of a run.

    Raises:
      PsrunError: it is not installed.
    """

    def __init__(self, namespace: str | None) -> None:
        executable = shutil.which("kubectl")
        if executable is None:
            raise PsrunError(
                "there is no kubectl in PATH: install it (https://kubernetes.io/docs/tasks/tools/), or save the "
                "manifests with psrun submit kubernetes --dry-run ... > run.yaml and apply them elsewhere with kubectl "
                "apply -f run.yaml"
            )
        self._command = [executable, *([] if namespace is None else ["--namespace", namespace])]

    def apply(self, text: str, settings: choices.KubernetesKeys) -> bool:
        """Applies manifests; returns whether the run is new. Raises PsrunError if the cluster rejects an object."""
        completed = self._run("apply", "-f", "-", given=text)
        if completed.returncode == 0:
            return f"{manifests.main_object(settings)} unchanged" not in completed.stdout.splitlines()
        message = completed.stderr.strip()
        hints = dict.fromkeys(f"\n{hint}" for part, hint in _HINTS.items() if part in message)
        raise PsrunError(f"kubectl apply exited with code {completed.returncode}: {message}{''.join(hints)}")

    def get(self, *what: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist. Raises PsrunError if kubectl fails repeatedly."""
        for attempt in range(_ATTEMPTS):  # one failed request does not end the view of a long run
            if attempt:
                time.sleep(_POLL_S)
            completed = self._run("get", *what, "--output", "json", "--ignore-not-found")
            if completed.returncode == 0:
                return json.loads(completed.stdout) if completed.stdout.strip() else None
        raise PsrunError(
            f"kubectl get {' '.join(what)} exited with code {completed.returncode}, {_ATTEMPTS} times: "
            f"{completed.stderr.strip()}\nThe run itself is not affected"
        )

    def show_log(self, pod: str, since: str | None) -> str:
        """Copies the log of the pod to standard output, from that time (RFC 3339) until the pod ends.

        Returns:
          The error of kubectl; empty without one.
        """
        more = [] if since is None else ["--since-time", since]
        command = [*self._command, "logs", "--follow", pod, *more]
        completed = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        return completed.stderr.strip() if completed.returncode else ""

    def log(self, pod: str) -> str:
        """The log of the pod so far. Raises PsrunError if there is none."""
        return self._done("logs", pod)

    def delete(self, *what: str) -> None:
        """Deletes objects, and waits until they are gone. Raises PsrunError if that is not possible."""
        self._done("delete", *what, "--ignore-not-found", "--wait")

    def _done(self, *arguments: str) -> str:
        completed = self._run(*arguments)
        if completed.returncode:
            message = completed.stderr.strip()
            hints = dict.fromkeys(f"\n{hint}" for part, hint in _HINTS.items() if part in message)
            text = f"kubectl {' '.join(arguments)} exited with code {completed.returncode}: {message}"
            raise PsrunError(f"{text}{''.join(hints)}")
        return completed.stdout

    def _run(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [*self._command, *arguments]
        try:
            return subprocess.run(
                command, input=given, capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"no answer within {_ANSWERS_WITHIN_S:.0f} s")


def newest(pods: Mapping[str, Any]) -> Chief | None:
    """The state of the newest pod of the chief, from `kubectl get pods --output json`; None if there is none."""
    if not pods["items"]:
        return None
    pod = max(pods["items"], key=lambda each: each["metadata"]["creationTimestamp"])
    name = pod["metadata"]["name"]
    status = pod.get("status", {})
    states = [each["state"] for each in status.get("containerStatuses", [])]  # of the only container
    state = states[0] if states else {}
    if "running" in state:
        return Chief(name, running=True)
    details = state.get("terminated") or state.get("waiting") or {}
    hopeless = details.get("reason") in _HOPELESS
    if "terminated" in state and not hopeless:
        return Chief(name, code=int(details["exitCode"]))
    if status.get("phase") == "Failed" and not hopeless:  # evicted before it started
        return Chief(name, code=-1)
    unscheduled = [each.get("message", "") for each in status.get("conditions", []) if each.get("status") == "False"]
    reasons = [details.get("reason", ""), details.get("message", "")] if details else unscheduled
    return Chief(name, waits=": ".join(filter(None, reasons)), hopeless=hopeless)


def is_over(main: Mapping[str, Any] | None) -> bool:
    """Whether Kubernetes restarts nothing of the run: its main object is deleted, failed or complete."""
    if main is None:
        return True
    conditions = main.get("status", {}).get("conditions") or []
    return any(each["type"] in ("Failed", "Complete", "Completed") and each["status"] == "True" for each in conditions)


def exit_code(code: int) -> ExitCode:
    """psrun's exit code for that of a container."""
    if code in tuple(ExitCode):
        return ExitCode(code)
    return ExitCode.RESTART if code >= 128 or code < 0 else ExitCode.FAILED


def follow(kubectl: Kubectl, settings: choices.KubernetesKeys, console: Console) -> ExitCode:
    """Shows the chief's log until the run ends. Ctrl-C stops only the log.

    Returns:
      The exit code of the run.

    Raises:
      PsrunError: the run cannot start, or kubectl does not answer.
    """
    selector = f"{manifests.INSTANCE}={settings.name},{manifests.COMPONENT}=chief"
    shown_pod = shown = ""
    since = None
    while True:
        over = is_over(kubectl.get(manifests.main_object(settings)))  # before the pods, so that the last pod is seen
        chief = newest(kubectl.get("pods", "--selector", selector) or {"items": []})
        if chief is not None and chief.hopeless:
            raise PsrunError(f"the chief cannot start: {chief.waits} (image {settings.image}); the run is not affected")
        if chief is not None and (chief.running or (chief.code is not None and chief.pod != shown_pod)):
            error = kubectl.show_log(chief.pod, since if chief.pod == shown_pod else None)
            since = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            shown_pod = chief.pod
            if not error:
                continue
            state = f"the log of {chief.pod} is not available: {error}"
        elif chief is not None and chief.code is not None:
            if over or chief.code in (0, *manifests.FOR_GOOD):
                return exit_code(chief.code)
            state = f"{chief.pod} exited with code {chief.code}; Kubernetes restarts it"
        elif over:
            raise PsrunError(f"the run {settings.name} was deleted, or failed before its chief started")
        elif chief is None:
            state = "waiting for the chief's pod"
        else:
            state = f"{chief.pod} is waiting: {chief.waits or 'not scheduled to a node yet'}"
        if state != shown:
            console.print(state, style="dim", soft_wrap=True, markup=False)
            shown = state
        time.sleep(_POLL_S)
