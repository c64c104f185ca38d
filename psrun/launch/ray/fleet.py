"""Places the tasks of a run on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from psrun import __version__
from psrun.cluster.probe import reachable
from psrun.config import choices
from psrun.config.topology import CHIEF, Task
from psrun.errors import ClusterError, ConfigError, Problem
from psrun.launch.backend import TaskPlan
from psrun.launch.ray import capacity, node
from psrun.launch.ray.node import NodeInfo
from psrun.process import Stop
from psrun.results import task_files
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder

_POLL_S = 0.5
_LOOK_EVERY_S = 1.0
_LOOKS_WITHIN_S = 60.0  # the first process on a node starts slowly
_PASSED_ON = (
    "TF_",
    "XLA_",
    "MLFLOW_",
    "OMP_",
    "PYTHON",
)  # prefixes of environment variables that tasks inherit from the driver
_FREE_TRIES = 10
_REACHED_WITHIN_S = 2.0
_KNOWS_WITHIN_S = 120.0


class Fleet:
    """Places the tasks, and starts them on their nodes.

    Attributes:
      addresses: HOST:PORT of the tasks that serve; changes when all tasks are placed again.
    """

    def __init__(
        self, cluster: choices.Ray, wanted: TaskPlan, folder: RunFolder, reporter: Reporter, stop: Stop
    ) -> None:
        self._cluster, self._folder, self._reporter, self._stop = cluster, folder, reporter, stop
        self._tasks, self._addressed = wanted.tasks(), wanted.addressed()
        self._needs = capacity.needs(cluster, self._tasks)
        self.addresses: dict[Task, str] = {}
        self._group: Any = None
        self._seen: dict[Task, NodeInfo] = {}
        self._void = True
        self._lost: set[str] = set()
        self._looked_s = time.monotonic()

    def start(self, task: Task) -> Any:
        """Starts the actor of a task and returns it. After the loss of a node, all tasks are placed again first.

        Raises:
          ConfigError: the nodes do not fit the run.
          ClusterError: they no longer do, or their resources are in use for too long.
        """
        if self._void:
            self._place()
        options = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
        return self._on(task, ray.remote(node.TaskActor), max_concurrency=4, **self._needs[task].options()).remote(
            *(task, self.addresses, self._folder.path),
            node=self._seen[task].node,
            environment=options,
            cwd=os.getcwd(),
        )

    def lost(self, task: Task) -> str | None:
        """The lost node of a task, as text; None while the node is alive."""
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._lost |= {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
        info = self._seen.get(task)
        return _named(info) if info and info.node in self._lost else None

    def check_nodes(self) -> None:
        """Checks the nodes of all tasks after a task was lost: Ray takes half a minute to report a lost node."""
        placed = {info.node for info in self._seen.values()} - self._lost
        for entry in ray.nodes():
            where = f"{entry['NodeManagerAddress']}:{entry['NodeManagerPort']}"
            if entry["NodeID"] in placed and not (entry["Alive"] and reachable(where, timeout_s=_REACHED_WITHIN_S)):
                self._lost.add(entry["NodeID"])

    def invalidate(self) -> None:
        """Makes the next start place all tasks again."""
        self._void = True

    def _place(self) -> None:
        again = self._group is not None
        if again:
            self._await_end(CHIEF)
            self._await_ray()
            remove_placement_group(self._group)
            self._seen.clear()
        try:
            capacity.check(self._needs, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        except ConfigError as error:
            raise ClusterError(f"after the loss of a node: {error}") if again else error from None
        bundles = [self._needs[task].bundle() for task in self._tasks]
        self._group = placement_group(bundles, strategy=self._cluster.placement_group.upper())
        self._await_room()
        token = secrets.token_hex(8)
        node.probe(self._folder.path).parent.mkdir(exist_ok=True)
        node.probe(self._folder.path).write_text(token, encoding="utf-8")
        self._seen = self._look(self._tasks, token)
        self._check_nodes(token)
        self.addresses |= self._free_addresses(token)
        self._void = False
        if len(ray.nodes()) > 1:
            self._reporter.emit("preparing", text=self._summary())

    def _await_end(self, task: Task) -> None:
        """Waits for a chief on a disconnected node to exit: two chiefs must not write one run folder."""
        if self.lost(task) is None:
            return
        deadline_s = time.monotonic() + self._cluster.restart.progress_timeout_s
        while task_files.still_beats(self._folder.path, task) and time.monotonic() < deadline_s:
            self._stop.raise_if_requested()

    def _await_ray(self) -> None:
        """Waits until Ray has detected the lost nodes: until then it places tasks on them."""
        deadline_s = time.monotonic() + _KNOWS_WITHIN_S
        while any(node["Alive"] and node["NodeID"] in self._lost for node in ray.nodes()):
            self._stop.raise_if_requested()
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"a node does not answer, but Ray still lists it as alive after {_KNOWS_WITHIN_S:.0f} s"
                )
            time.sleep(_POLL_S)

    def _await_room(self) -> None:
        deadline_s = time.monotonic() + self._cluster.connect_timeout_s
        while not self._group.wait(timeout_seconds=_POLL_S):
            self._stop.raise_if_requested()
            if time.monotonic() > deadline_s:
                free = ray.available_resources()
                message = (
                    f"no free resources within {self._cluster.connect_timeout_s:.0f} s (cluster.connect_timeout_s)"
                )
                num_cpus = sum(need.num_cpus for need in self._needs.values())
                raise ClusterError(
                    f"{message}: the tasks request {num_cpus:g} CPUs, and others use the cluster: "
                    f"{free.get('CPU', 0):g} of {ray.cluster_resources().get('CPU', 0):g} are free"
                )

    def _on(self, task: Task, what: Any, **options: Any) -> Any:
        """A remote function or actor class, bound to the task's node."""
        where = PlacementGroupSchedulingStrategy(self._group, self._tasks.index(task))
        return what.options(scheduling_strategy=where, **options)

    def _look(self, tasks: Iterable[Task], token: str) -> dict[Task, NodeInfo]:
        answers = {
            task: self._on(task, ray.remote(node.look), num_cpus=0, max_retries=0).remote(self._folder.path, token)
            for task in tasks
        }
        deadline_s, infos = time.monotonic() + _LOOKS_WITHIN_S, {}
        for task, answer in answers.items():
            while task not in infos:
                self._stop.raise_if_requested()
                try:
                    infos[task] = ray.get(answer, timeout=_POLL_S)
                except GetTimeoutError as error:
                    if time.monotonic() > deadline_s:
                        message = f"the node for {task} started no process within {_LOOKS_WITHIN_S:.0f} s"
                        raise ClusterError(message, task=str(task)) from error
                except RayError as error:
                    reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), "")
                    message = f"the node for {task} cannot run it: {reason.strip()} (psrun must be installed there)"
                    raise ClusterError(message, task=str(task)) from error
        return infos

    def _check_nodes(self, token: str) -> None:
        """Raises ConfigError if a node has another version of psrun, or does not see the run folder."""
        problems, probe = [], node.probe(self._folder.path)
        answered = {info.node: _answers(probe, info, token) for info in self._seen.values()}
        for info in {info.node: info for info in self._seen.values()}.values():
            if info.version != __version__:
                versions = f"psrun {info.version}, but the driver has {__version__}"
                message = f"node {_named(info)} has {versions}: install the same version"
                problems.append(Problem("cluster", message))
            if not info.sees or not answered[info.node]:
                message = f"{self._folder.path} is not visible on node {_named(info)}; choose a folder on a shared disk"
                problems.append(Problem("hydra.run.dir", message))
        for file in probe.parent.glob(f"{probe.name}*"):
            with contextlib.suppress(OSError):
                file.unlink()
        if problems:
            raise ConfigError(problems)

    def _free_addresses(self, token: str) -> dict[Task, str]:
        """An address for each task that serves. Tasks on one node that picked the same port pick again."""
        addresses = {task: f"{self._seen[task].address}:{self._seen[task].port}" for task in self._addressed}
        for _ in range(_FREE_TRIES):
            clashing = [task for task in addresses if list(addresses.values()).count(addresses[task]) > 1]
            if not clashing:
                return addresses
            addresses |= {t: f"{info.address}:{info.port}" for t, info in self._look(clashing[1:], token).items()}
        raise ClusterError("the nodes found no distinct free ports")

    def _summary(self) -> str:
        tasks: dict[str, list[str]] = {}
        for task, info in self._seen.items():
            tasks.setdefault(_named(info), []).append(str(task))
        where = "; ".join(f"{', '.join(names)} on {node}" for node, names in tasks.items())
        return (
            f"tasks on {len(tasks)} nodes: {where}" if len(tasks) > 1 else f"all tasks on node {where.split(' on ')[1]}"
        )


def _named(info: NodeInfo) -> str:
    return f"{info.address} ({info.host}, {info.node[:8]})"


def _answers(file: Any, info: NodeInfo, token: str) -> bool:
    try:
        return file.with_name(f"{file.name}-{info.node}").read_text(encoding="utf-8") == token
    except OSError:
        return False
