"""The command kubectl: creates the objects of a run, and follows the chief until the run has ended."""

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
from psrun.errors import ExitCode, PsrunError
from psrun.launch.kubernetes import manifests

_POLL_S = 2.0
_ANSWERS_WITHIN_S = 60.0
_ATTEMPTS = 5
_NO_PSRUN = "No module named psrun"
_FOREVER_WITHOUT = {  # reasons of a waiting container that do not resolve themselves
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError",
}  # fmt: skip
_NEVER_BEGAN = {"StartError", "ContainerCannotRun"}  # such as an image without Python; exit code 128


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
        completed, kind = self._run("apply", "-f", "-", given=text), settings.kind
        if completed.returncode == 0:
            return f"{manifests.main_object(settings)} unchanged" not in completed.stdout.splitlines()
        message = completed.stderr.strip()
        if "no matches for kind" in message and kind != "indexed_jobs":
            hint = f"kubernetes.kind={kind} requires the operator of {manifests.OBJECTS[kind]}"
            raise PsrunError(f"the cluster rejected the objects: {message}\n{hint}; indexed_jobs requires none")
        if "immutable" in message:
            hint = "A run of that name exists: delete it, or set another kubernetes.name"
            raise PsrunError(f"the cluster rejected the objects: {message}\n{hint}")
        if "connection refused" in message or "no such host" in message or "Unable to connect" in message:
            raise PsrunError(f"kubectl cannot reach a cluster: {message}\nCheck `kubectl cluster-info` and KUBECONFIG")
        raise PsrunError(f"kubectl apply exited with code {completed.returncode}: {message}")

    def get(self, *what: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist. Raises PsrunError if kubectl fails."""
        for attempt in range(1, _ATTEMPTS + 1):  # one failed request does not end the following of a long run
            completed = self._run("get", *what, "--output", "json", "--ignore-not-found")
            if completed.returncode == 0:
                return json.loads(completed.stdout) if completed.stdout.strip() else None
            if attempt < _ATTEMPTS:
                time.sleep(_POLL_S)
        raise PsrunError(
            f"kubectl get {' '.join(what)} exited with code {completed.returncode}, {_ATTEMPTS} times: "
            f"{completed.stderr.strip()}\nThe run itself is not affected"
        )

    def logs(self, pod: str, since: str | None) -> subprocess.Popen[str]:
        """Follows the log of the pod from that time (RFC 3339) until the pod ends."""
        more = [] if since is None else ["--since-time", since]
        command = [*self._command, "logs", "--follow", pod, *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")

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
    name, status = pod["metadata"]["name"], pod.get("status", {})
    states = [each["state"] for each in status.get("containerStatuses", [])]
    for state in states:
        if "terminated" in state:
            ended = state["terminated"]
            if ended.get("reason") in _NEVER_BEGAN:
                message = ": ".join(filter(None, (ended["reason"], ended.get("message", ""))))
                return Chief(name, waits=message, hopeless=True)
            return Chief(name, code=int(ended["exitCode"]))
        if "running" in state:
            return Chief(name, running=True)
    if status.get("phase") == "Failed":  # evicted before it started
        return Chief(name, code=-1)
    for state in states:
        waiting = state.get("waiting", {})
        reason = waiting.get("reason", "")
        message = ": ".join(filter(None, (reason, waiting.get("message", ""))))
        return Chief(name, waits=message, hopeless=reason in _FOREVER_WITHOUT)
    unscheduled = [each.get("message", "") for each in status.get("conditions", []) if each.get("status") == "False"]
    return Chief(name, waits="; ".join(filter(None, unscheduled)))


def is_over(main: Mapping[str, Any] | None) -> bool:
    """Whether Kubernetes restarts nothing of the run: its main object is deleted, failed or complete."""
    if main is None:
        return True
    conditions = main.get("status", {}).get("conditions") or []
    over = ("Failed", "Complete", "Completed", "Succeeded")
    return any(each["type"] in over and each["status"] == "True" for each in conditions)


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
    shown, shown_pod, since, no_psrun = "", "", None, False
    while True:
        over = is_over(
            kubectl.get(manifests.main_object(settings))
        )  # asked before the pods, so that the last pod is seen
        chief = newest(kubectl.get("pods", "--selector", selector) or {"items": []})
        if chief is not None and chief.hopeless:
            raise PsrunError(f"the chief cannot start: {chief.waits} (image {settings.image}); the run is not affected")
        if (
            chief is not None
            and (chief.running or chief.code is not None)
            and (chief.running or chief.pod != shown_pod)
        ):
            since = since if chief.pod == shown_pod else None
            without, failed = _shown(kubectl.logs(chief.pod, since), console)
            no_psrun |= without
            since, shown_pod = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), chief.pod
            if failed:
                shown = _show(f"the log of {chief.pod} is not available: {failed}", shown, console)
                time.sleep(_POLL_S)
            continue
        if no_psrun:
            raise PsrunError(f"there is no psrun in the image {settings.image}: build the image as in Containerfile")
        ended = chief is not None and chief.code is not None
        if chief is not None and ended and (over or chief.code in (0, *manifests.FOR_GOOD)):
            return exit_code(int(chief.code or 0))
        if over and not ended:
            raise PsrunError(f"the run {settings.name} was deleted, or failed before its chief started")
        shown = _show(_state(chief), shown, console)
        time.sleep(_POLL_S)


def _state(chief: Chief | None) -> str:
    if chief is None:
        return "waiting for the chief's pod"
    if chief.code is not None:
        return f"{chief.pod} exited with code {chief.code}; Kubernetes restarts it"
    return f"{chief.pod} is waiting: {chief.waits or 'not scheduled to a node yet'}"


def _show(state: str, shown: str, console: Console) -> str:
    if state != shown:
        console.print(state, style="dim", soft_wrap=True, markup=False)
    return state


def _shown(log: subprocess.Popen[str], console: Console) -> tuple[bool, str]:
    """Shows the log of a pod to its end; returns whether it lacks psrun, and the error of kubectl, if any."""
    without = False
    with log:
        assert log.stdout is not None
        assert log.stderr is not None
        for line in log.stdout:
            without |= _NO_PSRUN in line
            console.file.write(line)
            console.file.flush()
        failed = log.stderr.read().strip()
    return without, failed if log.returncode else ""
