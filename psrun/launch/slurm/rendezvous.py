"""How the keepers of a Slurm step find each other and agree: small files in the run folder, one writer each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import portpicker
import psutil

from psrun import files
from psrun.cluster.probe import PortReservation, own_host
from psrun.config.run_config import RunConfig
from psrun.config.topology import Task
from psrun.errors import ConfigError, Problem, ServerStartError
from psrun.launch.hang_detector import Silence
from psrun.launch.slurm.task_identity import Step
from psrun.results import task_files

_CALL = "call.json"
_TOUCH_EVERY_S = 2.0
_PORTS_TRIED = 20
CLOCKS_APART_S = 5.0


@dataclass(frozen=True)
class TaskStatus:
    """The state that an agent reports of its task.

    Attributes:
      address: HOST:PORT by which other nodes reach the task; empty for one that does not serve.
      at_s: when this was written, as of `time.time` of its node.
      attempt: of the training that the task is ready for.
      restarts: how often it was lost.
      cause: why it was lost the last time; empty once a parameter server has started again with the chief.
      ended: the exit code with which it ended and will not be started again; None while it has not.
    """

    address: str
    node: str
    at_s: float
    attempt: int = 0
    restarts: int = 0
    cause: str = ""
    ended: int | None = None

    def but(self, **values: Any) -> TaskStatus:
        """This, written now, with other values."""
        return replace(self, at_s=time.time(), **values)


@dataclass(frozen=True)
class ClusterPlan:
    """The messages of the chief's agent to all others.

    Attributes:
      addresses: HOST:PORT by the name of the task.
      attempt: of the training: parameter servers start again with each.
      over: the exit code of the run, once it is over.
    """

    addresses: dict[str, str]
    attempt: int = 0
    over: int | None = None

    def by_task(self) -> dict[Task, str]:
        """The addresses."""
        parts = {name: name.rpartition("-") for name in self.addresses}
        return {Task(job, int(index)): self.addresses[name] for name, (job, _, index) in parts.items()}


class Rendezvous:
    """The keepers of one start of a step, as one of them sees them.

    Args:
      folder: of the run.
      me: whose keeper this is.
    """

    def __init__(self, folder: Path, step: Step, me: Task) -> None:
        self._shared, self._step, self._me = task_files.shared(folder), step, me
        self.path = self._shared / step.key
        self._silences: dict[Task, Silence] = {}
        self._touched_s = time.monotonic()

    def write(self, card: TaskStatus) -> None:
        """Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        files.write_atomic(self._file(self._me), json.dumps(asdict(card)))

    def touch(self) -> None:
        """A sign of life, now and then. Call again and again."""
        if time.monotonic() - self._touched_s > _TOUCH_EVERY_S:
            self._touched_s = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._file(self._me))

    def leave(self) -> None:
        """The task is no more, in good order."""
        self._file(self._me).unlink(missing_ok=True)

    def read(self, task: Task) -> TaskStatus | None:
        found = _read(self._file(task))
        return TaskStatus(**found) if found else None

    def call(self, call: ClusterPlan) -> None:
        """Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        files.write_atomic(self.path / _CALL, json.dumps(asdict(call)))

    def called(self) -> ClusterPlan | None:
        found = _read(self.path / _CALL)
        return ClusterPlan(**found) if found else None

    @property
    def is_closed(self) -> bool:
        """Whether the chief's keeper has removed all this: the run is over."""
        return not self.path.exists()

    def remove(self) -> None:
        """All of this start, and nothing of a later one."""
        shutil.rmtree(self.path, ignore_errors=True)

    def superseded(self) -> bool:
        """Whether the job was started again meanwhile: this node had been given up."""
        starts = re.compile(rf"slurm-{re.escape(self._step.job)}\.{re.escape(self._step.step)}\.(\d+)")
        found = [starts.fullmatch(name) for name in task_files.names(self._shared)]
        return any(each is not None and int(each[1]) > self._step.restart for each in found)

    def look_anew(self) -> None:
        """Sees what others have written since, also on a slow disk. Call before waiting for a file, each time."""
        task_files.names(self.path)

    def remove_earlier(self) -> None:
        """What earlier starts have left. Whoever of them is still there sees by it that it was given up."""
        for other in self._shared.glob("slurm-*"):
            if other != self.path:
                shutil.rmtree(other, ignore_errors=True)

    def clock_ahead_s(self, task: Task) -> float | None:
        """How far the clock of the task's node is ahead of that by which files are dated."""
        card = self.read(task)
        try:
            return card.at_s - self._file(task).stat().st_mtime if card else None
        except OSError:
            return None

    def silent_s(self, task: Task) -> float:
        """For how long there was no sign of life, by this node's clock alone. Call again and again."""
        now_s = time.monotonic()
        try:
            beat = self._file(task).stat().st_mtime_ns
        except OSError:
            beat = -1
        return self._silences.setdefault(task, Silence(now_s)).unchanged(beat, now_s)

    def _file(self, task: Task) -> Path:
        return self.path / f"{task}.json"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None


def clocks_apart(ahead_s: Mapping[str, float], reference: str) -> list[str]:
    """Those whose clock differs from that of `reference` by more than a person would want, each with by how much.

    Args:
      ahead_s: by name, of a node, how far its clock is ahead of one that all share.
    """
    if reference not in ahead_s:
        return []
    differ = {name: value - ahead_s[reference] for name, value in ahead_s.items()}
    return [f"{name} by {value:+.0f} s" for name, value in sorted(differ.items()) if abs(value) > CLOCKS_APART_S]


def waits_to_end_s(run_config: RunConfig, task: Task) -> float:
    """How long the task may take to end by itself once the run was completed: the one that evaluates has work left."""
    evaluation = run_config.sidecar
    return evaluation.wait_s if evaluation is not None and task == run_config.evaluator else 0.0


def own_address(step: Step, interface: str | None) -> tuple[str, PortReservation]:
    """HOST:PORT by which other nodes reach this one, at a port that is held by the door until that is closed.

    The host is the address of the interface that is named or else of the one by which the host is reached that started
    the step: the names of nodes need not be names of hosts.

    Raises:
      ConfigError: there is no such interface, or it has no address.
      ServerStartError: no port could be had.
    """
    host = _host_of(interface) if interface else own_host(f"{step.launch_address or '127.0.0.1'}:1")
    for _ in range(_PORTS_TRIED):
        address = f"{host}:{portpicker.pick_unused_port()}"
        door = PortReservation(address)
        if door.is_open:
            return address, door
        door.close()
    raise ServerStartError(f"no free port on {step.node} in {_PORTS_TRIED} tries")


def _host_of(interface: str) -> str:
    there = psutil.net_if_addrs()
    if interface not in there:
        raise ConfigError([Problem("cluster.interface", f"is '{interface}'; this node has {', '.join(sorted(there))}")])
    found = {each.family.name: each.address.partition("%")[0] for each in reversed(there[interface])}
    if "AF_INET" in found:
        return found["AF_INET"]
    if "AF_INET6" in found:
        return f"[{found['AF_INET6']}]"
    raise ConfigError([Problem("cluster.interface", f"is '{interface}', which has no IP address")])
