"""What runs on the nodes of a Ray cluster: a look around, and the process of each task. No TensorFlow."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import portpicker
import ray

from psrun import __version__, files
from psrun.config.topology import Task
from psrun.errors import ClusterError
from psrun.launch.task_processes import TaskProcess

_SEES_WITHIN_S = 5.0  # a shared disk's client may take its time to show a new file
_POLL_S = 0.1


@dataclass(frozen=True)
class NodeInfo:
    """The state that a node reports.

    Attributes:
      node: Ray's id of it.
      address: of the node, for others.
      host: its name.
      port: one that nobody uses.
      sees: whether the run folder is here the one that the driver sees.
      version: of psrun.
    """

    node: str
    address: str
    host: str
    port: int
    sees: bool
    version: str


def probe(folder: Path) -> Path:
    """The file by which nodes are asked whether they see the run folder; theirs are named like it, with their id."""
    return folder / ".tasks" / "probe"


def look(folder: Path, token: str) -> NodeInfo:
    """Runs on a node. Answers the driver's question `token` in the run folder, where it can."""
    node = ray.get_runtime_context().get_node_id()
    asked, deadline_s, sees = probe(folder), time.monotonic() + _SEES_WITHIN_S, False
    while not sees and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            sees = asked.read_text(encoding="utf-8") == token
            if sees:
                files.write_atomic(asked.with_name(f"{asked.name}-{node}"), token)
        time.sleep(0 if sees else _POLL_S)
    address = ray.util.get_node_ip_address()
    return NodeInfo(node, address, socket.gethostname(), portpicker.pick_unused_port(), sees, __version__)


class TaskActor:
    """The process of one task, for as long as this actor lives: the kernel ends it with the actor's own process.

    Args:
      node: where it must be; Ray may move a task of a node that was lost, and others would not find it.
      environment: variables of the driver's that its tasks are to have.
      cwd: the driver's working directory, in which relative paths are meant where there is such a one here.
    """

    def __init__(
        self,
        task: Task,
        addresses: Mapping[Task, str],
        folder: Path,
        *,
        node: str,
        environment: Mapping[str, str],
        cwd: str,
    ) -> None:
        here = ray.get_runtime_context().get_node_id()
        if here != node:
            raise ClusterError(f"{task} was moved from node {node} to {here}", task=str(task))
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's own choice, of which the same task elsewhere knows nothing
        os.environ.update(environment)
        os.chdir(cwd if Path(cwd).is_dir() else folder)
        self._process = TaskProcess(task, addresses, folder)
        self._process.start()

    def pid(self) -> int:
        """Of the task's process."""
        assert self._process.process is not None
        return self._process.process.pid

    def wait(self) -> int:
        """Returns once the process has ended: its exit code, negative for a signal."""
        assert self._process.process is not None
        return self._process.process.wait()

    def send(self, signum: int) -> None:
        """Passes a signal on."""
        self._process.send(signum)
