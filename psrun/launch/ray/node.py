"""Runs on the nodes of a Ray cluster: checks the node and starts tasks. Does not import TensorFlow."""

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
from psrun.launch.backend import TaskProcess

_SEES_WITHIN_S = 5.0  # a shared disk may show new files late
_POLL_S = 0.1


@dataclass(frozen=True)
class NodeInfo:
    """The state that a node reports.

    Attributes:
      node: Ray's id of the node.
      address: of the node, for other nodes.
      host: its host name.
      port: a free port.
      sees: whether the run folder is the driver's.
      version: of psrun.
    """

    node: str
    address: str
    host: str
    port: int
    sees: bool
    version: str


def probe(folder: Path) -> Path:
    """The file that nodes look for in the run folder; their answers have its name with the node's id."""
    return folder / ".tasks" / "probe"


def look(folder: Path, token: str) -> NodeInfo:
    """Runs on a node: confirms the driver's `token` in the run folder if it is visible, and reports the node."""
    node = ray.get_runtime_context().get_node_id()
    file, deadline_s, sees = probe(folder), time.monotonic() + _SEES_WITHIN_S, False
    while not sees and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            sees = file.read_text(encoding="utf-8") == token
            if sees:
                files.write_atomic(file.with_name(f"{file.name}-{node}"), token)
        time.sleep(0 if sees else _POLL_S)
    address = ray.util.get_node_ip_address()
    return NodeInfo(node, address, socket.gethostname(), portpicker.pick_unused_port(), sees, __version__)


class TaskActor:
    """The process of one task. The kernel ends it when the actor's process exits.

    Args:
      node: the required node. Ray may move a task of a lost node, where the others would not find it.
      environment: variables that tasks inherit from the driver.
      cwd: the driver's working directory, to which paths are relative, if it exists here.
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
        os.environ.pop("OMP_NUM_THREADS", None)  # set by Ray; the same task under another engine does not have it
        os.environ.update(environment)
        os.chdir(cwd if Path(cwd).is_dir() else folder)
        self._process = TaskProcess(task, addresses, folder, shares_gpus_with=[])
        self._process.start()

    def pid(self) -> int:
        """The id of the task's process."""
        assert self._process.process is not None
        pid = self._process.process.pid
        assert pid is not None
        return pid

    def wait(self) -> int:
        """Waits for the process; returns its exit code, negative for a signal."""
        assert self._process.process is not None
        return self._process.process.wait()

    def send(self, signum: int) -> None:
        """Sends a signal to the process."""
        self._process.send(signum)
