"""The tasks of a run on the nodes of a Ray cluster: Ray places them, and each is the process of an actor."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from psrun import __version__
from psrun.cluster.probe import reachable
from psrun.config.topology import CHIEF, Task
from psrun.engines.ray import connection, node
from psrun.engines.ray.choice import Ray, RayTaskResources
from psrun.engines.ray.node import NodeInfo
from psrun.errors import ClusterError, ConfigError, ExitCode, Problem, ended
from psrun.launch.backend import Backend, Launch, TaskHandle
from psrun.results import task_files

_POLL_S = 0.5
_ASK_EVERY_S = 1.0
_ANSWERS_WITHIN_S = 60.0  # the first process on a node starts slowly
_REACHED_WITHIN_S = 2.0
_DETECTED_WITHIN_S = 120.0
_KILLED_WITHIN_S = 5.0
_LOOKS = 5
_MOST_CHARACTERS = 200
_PASSED_ON = ("TF_", "XLA_", "MLFLOW_", "OMP_", "PYTHON")  # environment variables that tasks inherit from the driver
_DIGITS = 4  # precision of Ray

Amounts = Mapping[str, float]  # of resources, by Ray's names


class RayBackend(Backend):
    """Places the tasks on nodes, and starts them there. If a node is lost, all tasks are placed again.

    Raises:
      ConfigError: there is no Ray cluster at `cluster.address`.
      ClusterError: the Ray cluster cannot be used.
    """

    def __init__(self, launch: Launch) -> None:
        cluster = launch.run.cluster
        assert isinstance(cluster, Ray)
        self._cluster = cluster
        self._folder = launch.folder.path
        self._reporter = launch.reporter
        self._stop = launch.stop
        self._addressed = launch.plan.addressed()
        tasks = launch.plan.tasks()
        self._bundles = {task: _bundle(getattr(cluster.resources, task.job)) for task in tasks}
        self._group: Any = None  # with the bundles in this order
        self._nodes: dict[Task, NodeInfo] = {}
        self._is_placed = False
        self._lost: set[str] = set()
        self._asked_s = time.monotonic()
        super().__init__({task: RayTask(task, self._folder, self) for task in tasks}, {})
        launch.console.file = sys.stdout
        with contextlib.ExitStack() as stack:
            # To the log: Ray prints pages on every lost node.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            with launch.console.status("connecting to Ray"):
                stack.enter_context(connection.opened(cluster, tasks))
            self._until_closed = stack.pop_all()

    def find_lost_machines(self) -> None:
        """Connects to the nodes of all tasks, since Ray takes half a minute to report a lost node."""
        used = {info.node for info in self._nodes.values()} - self._lost
        for each in ray.nodes():
            address = f"{each['NodeManagerAddress']}:{each['NodeManagerPort']}"
            if each["NodeID"] in used and not (each["Alive"] and reachable(address, timeout_s=_REACHED_WITHIN_S)):
                self._lost.add(each["NodeID"])

    def must_move(self, tasks: Sequence[TaskHandle]) -> bool:
        if all(self.lost_node(each.task) is None for each in tasks):
            return False
        self._is_placed = False
        return True

    def kill_all(self) -> None:
        connection.close()  # all actors end with their driver

    def close(self, code: ExitCode) -> None:
        self._until_closed.close()

    def start(self, task: Task) -> Any:
        """Starts the actor of a task and returns it. After the loss of a node, all tasks are placed again first.

        Raises:
          ConfigError: the nodes do not fit the run.
          ClusterError: they no longer do, or their resources are in use for too long.
        """
        if not self._is_placed:
            self._place()
        bundle = self._bundles[task]
        actor = ray.remote(node.TaskActor).options(
            scheduling_strategy=self._bundle_of(task),
            max_concurrency=4,
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU"),
            memory=bundle.get("memory"),
        )
        return actor.remote(
            *(task, self.addresses, self._folder),
            node=self._nodes[task].node,
            environment={name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)},
            cwd=os.getcwd(),
        )

    def lost_node(self, task: Task) -> str | None:
        """The lost node of a task, as text; None while the node is alive."""
        if time.monotonic() - self._asked_s > _ASK_EVERY_S:
            self._asked_s = time.monotonic()
            self._lost |= {each["NodeID"] for each in ray.nodes() if not each["Alive"]}
        info = self._nodes.get(task)
        return str(info) if info and info.node in self._lost else None

    def _give_up_places(self) -> None:
        """Removes the placement group after the loss of a node. Raises ClusterError if Ray does not detect the loss."""
        if self.lost_node(CHIEF) is not None:  # perhaps only disconnected: two chiefs must not write one run folder
            deadline_s = time.monotonic() + self._cluster.restart.progress_timeout_s
            while task_files.still_beats(self._folder, CHIEF) and time.monotonic() < deadline_s:
                self._stop.raise_if_requested()
        deadline_s = time.monotonic() + _DETECTED_WITHIN_S
        while any(each["Alive"] and each["NodeID"] in self._lost for each in ray.nodes()):  # Ray would use them again
            self._stop.raise_if_requested()
            if time.monotonic() > deadline_s:
                message = f"a node does not answer, but Ray still lists it as alive after {_DETECTED_WITHIN_S:.0f} s"
                raise ClusterError(message)
            time.sleep(_POLL_S)
        remove_placement_group(self._group)
        self._nodes.clear()

    def _place(self) -> None:
        is_first = self._group is None
        if not is_first:
            self._give_up_places()
        shortage = lack_of_resources(self._bundles, [each["Resources"] for each in ray.nodes() if each["Alive"]])
        if shortage and is_first:
            raise ConfigError([Problem("cluster.resources", shortage)])
        if shortage:
            raise ClusterError(f"after the loss of a node: {shortage}")
        self._group = placement_group(list(self._bundles.values()), strategy=self._cluster.placement_group.upper())
        deadline_s = time.monotonic() + self._cluster.connect_timeout_s
        while not self._group.wait(timeout_seconds=_POLL_S):
            self._stop.raise_if_requested()
            if time.monotonic() > deadline_s:
                raise ClusterError(self._no_room(_total(self._bundles)))
        by_node: dict[str, list[Task]] = {}
        for index, node_id in placement_group_table(self._group)["bundles_to_node_id"].items():
            by_node.setdefault(node_id, []).append(list(self.tasks)[int(index)])
        infos = distinct(lambda: self._look_at(list(by_node.values())))
        self._nodes = {task: info for tasks, info in zip(by_node.values(), infos, strict=True) for task in tasks}
        self.addresses = {
            task: f"{info.address}:{port}"
            for tasks, info in zip(by_node.values(), infos, strict=True)
            for task, port in zip(tasks, info.ports, strict=True)
            if task in self._addressed
        }
        if len(ray.nodes()) > 1:
            where = "; ".join(f"{', '.join(map(str, tasks))} on {self._nodes[tasks[0]]}" for tasks in by_node.values())
            several = f"tasks on {len(infos)} nodes: {where}"
            self._reporter.emit("preparing", text=several if len(infos) > 1 else f"all tasks on node {infos[0]}")
        self._is_placed = True

    def _no_room(self, requested: Amounts) -> str:
        limit = f"within {self._cluster.connect_timeout_s:.0f} s (cluster.connect_timeout_s)"
        free = _text({name: ray.available_resources().get(name, 0.0) for name in requested})
        has = _text({name: ray.cluster_resources().get(name, 0.0) for name in requested})
        return f"no free resources for all tasks {limit}: they request {_text(requested)}, and {free} of {has} are free"

    def _bundle_of(self, task: Task) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._group, list(self.tasks).index(task))

    def _look_at(self, groups: Sequence[Sequence[Task]]) -> list[NodeInfo]:
        """The state of the nodes, each given by the tasks on it.

        Raises:
          ConfigError: a node has another version of psrun, or does not see the run folder.
          ClusterError: a node does not answer, or cannot run psrun.
        """
        probe = node.probe(self._folder)
        probe.parent.mkdir(exist_ok=True)
        token = secrets.token_hex(8)
        probe.write_text(token, encoding="utf-8")
        look = ray.remote(num_cpus=0, max_retries=0)(node.look)
        answers = [
            look.options(scheduling_strategy=self._bundle_of(tasks[0])).remote(self._folder, token, len(tasks))
            for tasks in groups
        ]
        deadline_s = time.monotonic() + _ANSWERS_WITHIN_S
        infos = [self._answer(str(tasks[0]), answer, deadline_s) for tasks, answer in zip(groups, answers)]
        probe.unlink()
        problems = []
        for info in infos:
            if info.version != __version__:
                message = f"node {info} has psrun {info.version}, but the driver has {__version__}: install the same"
                problems.append(Problem("cluster", message))
            if not info.sees_folder:
                message = f"{self._folder} is not visible on node {info}; choose a folder on a shared disk"
                problems.append(Problem("hydra.run.dir", message))
        if problems:
            raise ConfigError(problems)
        return infos

    def _answer(self, task: str, answer: Any, deadline_s: float) -> NodeInfo:
        while True:
            self._stop.raise_if_requested()
            try:
                return ray.get(answer, timeout=_POLL_S)
            except GetTimeoutError as error:
                if time.monotonic() > deadline_s:
                    message = f"the node for {task} started no process within {_ANSWERS_WITHIN_S:.0f} s"
                    raise ClusterError(message, task=task) from error
            except RayError as error:
                reason = str(error).strip().rpartition("\n")[2].strip()
                message = f"the node for {task} cannot run it: {reason} (psrun must be installed there)"
                raise ClusterError(message, task=task) from error


def distinct(look: Callable[[], list[NodeInfo]]) -> list[NodeInfo]:
    """What `look` finds once each task has its own address: nodes on one host may find the same port free.

    Raises:
      ClusterError: they do so again and again.
    """
    for _ in range(_LOOKS):
        infos = look()
        addresses = [(info.address, port) for info in infos for port in info.ports]
        if len(set(addresses)) == len(addresses):
            return infos
    raise ClusterError(f"nodes on one host found the same free port, {_LOOKS} times")


def lack_of_resources(bundles: Mapping[Task, Amounts], nodes: Sequence[Amounts]) -> str | None:
    """Why the nodes could not hold all tasks even if they were empty; None if Ray has to find out.

    Compares each task with the largest node, and all tasks with all nodes together.

    Args:
      bundles: what each task requests.
      nodes: what each node has.
    """
    total = _total(bundles)
    homeless = [
        task
        for task, bundle in bundles.items()
        if not any(all(each.get(name, 0.0) >= amount for name, amount in bundle.items()) for each in nodes)
    ]
    if not homeless and all(amount <= sum(each.get(name, 0.0) for each in nodes) for name, amount in total.items()):
        return None
    cause = f"no node has room for {homeless[0]}, which requests {_text(bundles[homeless[0]])}; " if homeless else ""
    kinds = Counter(_text({name: each.get(name, 0.0) for name in total}) for each in nodes)
    has = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "nothing"
    request = f"{len(bundles)} tasks request {_text(total)} in total, but the nodes have {has}"
    return f"{cause}{request}: request less, or start fewer tasks"


def _bundle(resources: RayTaskResources) -> dict[str, float]:
    amounts = {"CPU": resources.num_cpus, "GPU": resources.num_gpus, "memory": resources.memory_bytes}
    return {name: amount for name, amount in amounts.items() if amount}


def _total(bundles: Mapping[Task, Amounts]) -> dict[str, float]:
    names = dict.fromkeys(name for bundle in bundles.values() for name in bundle)
    return {name: round(sum(bundle.get(name, 0.0) for bundle in bundles.values()), _DIGITS) for name in names}


def _text(amounts: Amounts) -> str:
    units = {"CPU": "CPUs", "GPU": "GPUs", "memory": "bytes of memory"}
    return " and ".join(f"{amount:,.15g} {units[name]}" for name, amount in amounts.items())


class RayTask(TaskHandle):
    """One task and its current actor."""

    def __init__(self, task: Task, folder: Path, backend: RayBackend) -> None:
        super().__init__(task, folder)
        self._backend = backend
        self._actor: Any = None
        self._exit: Any = None  # reference to the exit code
        self._asked_pid: Any = None  # reference to the process id
        self._pid: int | None = None
        self._code: int | None = None
        self._how = ""

    def start(self) -> None:
        super().start()
        self._actor = self._backend.start(self.task)
        self._exit = self._actor.wait.remote()
        self._asked_pid = self._actor.pid.remote()
        self._pid = None
        self._code = None

    @property
    def started(self) -> bool:
        return self._actor is not None

    @property
    def pid(self) -> int | None:
        if self._pid is None and self._asked_pid is not None:  # a heartbeat is read ten times a second
            with contextlib.suppress(GetTimeoutError, RayError):  # `code` reports an actor that is gone
                self._pid = ray.get(self._asked_pid, timeout=0)
        return self._pid

    @property
    def code(self) -> int | None:
        if self._actor is None or self._code is not None:
            return self._code
        lost = self._backend.lost_node(self.task)
        if lost is not None:
            self._end(-signal.SIGKILL, f"was lost with its node {lost}")
        elif ray.wait([self._exit], timeout=0)[0]:
            try:
                code = ray.get(self._exit)
                self._end(code, ended(code))
            except RayError as error:
                self._backend.find_lost_machines()
                lost = self._backend.lost_node(self.task)
                cause = " ".join(str(error).split())[:_MOST_CHARACTERS]
                self._end(-signal.SIGKILL, f"was lost with its {f'node {lost}' if lost else f'actor ({cause})'}")
        return self._code

    def _end(self, code: int, how: str) -> None:
        self._code = code
        self._how = how

    @property
    def how_it_ended(self) -> str:
        return self._how if self.code is not None else ""

    def send(self, signum: int) -> None:
        if self.running:
            self._actor.send.remote(int(signum))

    def kill(self) -> None:
        if self._actor is None or self._exit is None:
            return
        ray.kill(self._actor)
        if self._backend.lost_node(self.task) is None:
            ray.wait([self._exit], timeout=_KILLED_WITHIN_S)
        if self._code is None:
            self._code = -signal.SIGKILL
        self._exit = None
