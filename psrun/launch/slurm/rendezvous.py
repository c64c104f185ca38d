"""How the agents of a Slurm step find each other and agree: small files in the run folder, each with one writer."""

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

_PLAN_FILE = "plan.json"
_TOUCH_EVERY_S = 2.0
_PORTS_TRIED = 20
CLOCKS_APART_S = 5.0


@dataclass(frozen=True)
class TaskStatus:
    """The state that an agent reports of its task.

    Attributes:
      address: HOST:PORT at which other nodes reach the task; empty for a task that does not serve.
      at_s: time of writing, as of `time.time` of its node.
      attempt: number of the training's attempt that the task is ready for.
      restarts: number of times that it was lost.
      cause: of the last loss; empty once a parameter server has restarted with the chief.
      ended: exit code of a task that is not restarted; None until then.
    """

    address: str
    node: str
    at_s: float
    attempt: int = 0
    restarts: int = 0
    cause: str = ""
    ended: int | None = None

    def but(self, **values: Any) -> TaskStatus:
        """A copy as of now, with other values."""
        return replace(self, at_s=time.time(), **values)


@dataclass(frozen=True)
class ClusterPlan:
    """The plan that the chief's agent publishes to all others.

    Attributes:
      addresses: HOST:PORT by task name.
      attempt: number of the training's attempt; parameter servers restart with each.
      over: exit code of the run, once it is over.
    """

    addresses: dict[str, str]
    attempt: int = 0
    over: int | None = None

    def by_task(self) -> dict[Task, str]:
        """The addresses by task."""
        parts = {name: name.rpartition("-") for name in self.addresses}
        return {Task(job, int(index)): self.addresses[name] for name, (job, _, index) in parts.items()}


class Rendezvous:
    """The agents of one start of a step, as seen by one of them.

    Args:
      folder: of the run.
      me: the task of this agent.
    """

    def __init__(self, folder: Path, step: Step, me: Task) -> None:
        self._shared, self._step, self._me = task_files.shared(folder), step, me
        self.path = self._shared / step.key
        self._silences: dict[Task, Silence] = {}
        self._touched_s = time.monotonic()

    def write(self, status: TaskStatus) -> None:
        """Raises OSError."""
        self._write(self._file(self._me), status)

    def touch(self) -> None:
        """Writes a heartbeat at intervals. Call repeatedly."""
        if time.monotonic() - self._touched_s > _TOUCH_EVERY_S:
            self._touched_s = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._file(self._me))

    def leave(self) -> None:
        """Removes the status of a task that has ended."""
        self._file(self._me).unlink(missing_ok=True)

    def read(self, task: Task) -> TaskStatus | None:
        record = _read(self._file(task))
        return TaskStatus(**record) if record else None

    def publish(self, plan: ClusterPlan) -> None:
        """Raises OSError."""
        self._write(self.path / _PLAN_FILE, plan)

    def plan(self) -> ClusterPlan | None:
        record = _read(self.path / _PLAN_FILE)
        return ClusterPlan(**record) if record else None

    @property
    def is_closed(self) -> bool:
        """Whether the chief's agent has removed the files: the run is over."""
        return not self.path.exists()

    def remove(self) -> None:
        """Removes the files of this start only."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_all(self) -> None:
        """Removes the files of the run's tasks, but none of another job: its agents may have joined already.

        Slurm starts a job that resumes the run while the agents of a cancelled one still end.
        """
        self.remove()
        with contextlib.suppress(OSError):  # of `rmdir`: the next job is there
            for name in task_files.names(self._shared):
                if not name.startswith("slurm-"):
                    (self._shared / name).unlink(missing_ok=True)
            self._shared.rmdir()

    def superseded(self) -> bool:
        """Whether the job was restarted meanwhile: Slurm has given up this node."""
        starts = re.compile(rf"slurm-{re.escape(self._step.job)}\.{re.escape(self._step.step)}\.(\d+)")
        matches = [starts.fullmatch(name) for name in task_files.names(self._shared)]
        return any(each is not None and int(each[1]) > self._step.restart for each in matches)

    def refresh(self) -> None:
        """Makes files of other nodes visible, also on a slow disk. Call before each check for a file."""
        task_files.names(self.path)

    def remove_earlier(self) -> None:
        """Removes the files of earlier starts, which tells their processes, if any are left, to exit."""
        for other in self._shared.glob("slurm-*"):
            if other != self.path:
                shutil.rmtree(other, ignore_errors=True)

    def clock_ahead_s(self, task: Task) -> float | None:
        """How far the clock of the task's node is ahead of the clock that dates the files."""
        status = self.read(task)
        try:
            return status.at_s - self._file(task).stat().st_mtime if status else None
        except OSError:
            return None

    def silent_s(self, task: Task) -> float:
        """How long there has been no heartbeat, by this node's clock. Call repeatedly."""
        now_s = time.monotonic()
        try:
            beat = self._file(task).stat().st_mtime_ns
        except OSError:
            beat = -1
        return self._silences.setdefault(task, Silence(now_s)).unchanged(beat, now_s)

    def _write(self, file: Path, record: TaskStatus | ClusterPlan) -> None:
        text = json.dumps(asdict(record))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            files.write_atomic(file, text)
        except FileNotFoundError:  # an earlier job has just removed the folder, which it does once: see `remove_all`
            self.path.mkdir(parents=True, exist_ok=True)
            files.write_atomic(file, text)

    def _file(self, task: Task) -> Path:
        return self.path / f"{task}.json"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None


def clocks_apart(ahead_s: Mapping[str, float], reference: str) -> list[str]:
    """The nodes whose clock differs from that of `reference` by more than CLOCKS_APART_S, each with the difference.

    Args:
      ahead_s: by node, how far its clock is ahead of one that all share.
    """
    if reference not in ahead_s:
        return []
    differ = {name: value - ahead_s[reference] for name, value in ahead_s.items()}
    return [f"{name} by {value:+.0f} s" for name, value in sorted(differ.items()) if abs(value) > CLOCKS_APART_S]


def waits_to_end_s(run_config: RunConfig, task: Task) -> float:
    """How long the task may take to exit once the run is completed: the evaluator has work left."""
    evaluation = run_config.sidecar
    return evaluation.wait_s if evaluation is not None and task == run_config.evaluator else 0.0


def own_address(step: Step, interface: str | None) -> tuple[str, PortReservation]:
    """HOST:PORT at which other nodes reach this one; the port is held until the reservation is closed.

    The host is the address of the interface, or of the route to the host that started the step if none is given: node
    names need not be host names.

    Raises:
      ConfigError: there is no such interface, or it has no address.
      ServerStartError: no port is free.
    """
    host = _host_of(interface) if interface else own_host(f"{step.launch_address or '127.0.0.1'}:1")
    for _ in range(_PORTS_TRIED):
        address = f"{host}:{portpicker.pick_unused_port()}"
        reservation = PortReservation(address)
        if reservation.is_open:
            return address, reservation
        reservation.close()
    raise ServerStartError(f"no free port on {step.node} in {_PORTS_TRIED} tries")


def _host_of(interface: str) -> str:
    there = psutil.net_if_addrs()
    if interface not in there:
        raise ConfigError([Problem("cluster.interface", f"is '{interface}'; this node has {', '.join(sorted(there))}")])
    hosts = {each.family.name: each.address.partition("%")[0] for each in reversed(there[interface])}
    if "AF_INET" in hosts:
        return hosts["AF_INET"]
    if "AF_INET6" in hosts:
        return f"[{hosts['AF_INET6']}]"
    raise ConfigError([Problem("cluster.interface", f"is '{interface}', which has no IP address")])
