"""Runs on the nodes of a Ray cluster: reports the node and starts tasks. Does not import TensorFlow."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import portpicker
import ray

from psrun import __version__
from psrun.config.topology import Task
from psrun.errors import ClusterError
from psrun.launch.backend import TaskProcess
from psrun.launch.child_processes import ChildProcess

_SEEN_WITHIN_S = 5.0  # a shared disk may show new files late
_POLL_S = 0.1


@dataclass(frozen=True)
class NodeInfo:
    """What a node reports.

    Attributes:
      node: Ray's id of the node.
      address: of the node, for other nodes.
      host: its host name.
      ports: free ports, one for each of its tasks.
      sees_folder: whether the run folder is the driver's, and writable.
      version: of psrun.
    """

    node: str
    address: str
    host: str
    ports: list[int]
    sees_folder: bool
    version: str

    def __str__(self) -> str:
        return f"{self.address} ({self.host}, {self.node[:8]})"


def probe(folder: Path) -> Path:
    """The file in the run folder by which nodes recognize it."""
    return folder / ".tasks" / "probe"


def look(folder: Path, token: str, num_ports: int) -> NodeInfo:
    """Reports the node.

    Args:
      token: what the driver has written to the probe in the run folder.
    """
    deadline_s = time.monotonic() + _SEEN_WITHIN_S
    while not (sees := _reads(probe(folder), token)) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    ports: set[int] = set()
    while len(ports) < num_ports:
        ports.add(portpicker.pick_unused_port())
    here = ray.get_runtime_context().get_node_id()
    address = ray.util.get_node_ip_address()
    return NodeInfo(here, address, socket.gethostname(), list(ports), sees and os.access(folder, os.W_OK), __version__)


def _reads(file: Path, token: str) -> bool:
    try:
        return file.read_text(encoding="utf-8") == token
    except OSError:
        return False


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
        task_process = TaskProcess(task, addresses, folder, shares_gpus_with=[])
        task_process.start()
        assert task_process.process is not None
        self._process: ChildProcess = task_process.process

    def pid(self) -> int | None:
        """The id of the task's process."""
        return self._process.pid

    def wait(self) -> int:
        """Waits for the process; returns its exit code, negative for a signal."""
        return self._process.wait()

    def send(self, signum: int) -> None:
        """Sends a signal to the process, which may have ended."""
        self._process.send_signal(signum)
