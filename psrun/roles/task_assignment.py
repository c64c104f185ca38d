"""Assigns this process its task and its role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psrun.config import choices, consistency_rules, topology
from psrun.config.run_config import CHIEF_ROLES, RunConfig
from psrun.config.topology import CHIEF, Task, Topology
from psrun.errors import ConfigError
from psrun.process import SUPERVISOR_PID


@dataclass(frozen=True)
class Identity:
    """The task and the role of this process.

    Attributes:
      role: of `psrun.roles.table.ROLES`.
      name: of the task, as in log files and messages.
      topology: None for a single process.
      owns_folder: whether this process creates the run folder and writes run.json.
      may_find_run: whether a run that is already in the folder is an earlier start of this one.
      patience_s: how long processes of an earlier start, on lost nodes, may still use the folder.
      start: the name of this start of the run; they see it and exit.
    """

    role: str
    name: str
    topology: Topology | None = None
    owns_folder: bool = True
    may_find_run: bool = False
    patience_s: float = 0.0
    start: str = ""

    @property
    def of_processes(self) -> bool:
        """Whether it is one of several processes, or starts them."""
        return self.topology is not None or self.role == "supervisor"


def identify(run: RunConfig, environment: Mapping[str, str]) -> Identity:
    """Raises ConfigError if the task cannot be determined."""
    if run.mode != "train" and not (run.uses_cluster and run.cluster.has_server_processes):
        role = {"plan": "planner", "export": "exporter", "predict": "predictor", "evaluate": "evaluation"}[run.mode]
        return Identity(role, role, owns_folder=run.resume is None)  # an existing run is not changed
    starter = None if SUPERVISOR_PID in environment else _starter(run, environment)
    if starter is not None:
        return starter
    cluster = _topology(run, environment)
    if cluster is None:
        return Identity("coordinator", str(CHIEF))
    if run.cluster.has_synchronous_workers and cluster.me != CHIEF:
        return Identity("replica", str(cluster.me), cluster, owns_folder=False)
    if run.sidecar is not None and run.sidecar.sets_worker_aside and cluster.me.job != topology.EVALUATOR.job:
        cluster = topology.with_one_set_aside(cluster)
    if cluster.me == CHIEF and (problems := consistency_rules.of_workers(run, len(cluster.of("worker")))):
        raise ConfigError(problems)
    return _of(cluster, cluster.me, CHIEF_ROLES[run.mode])


def _starter(run: RunConfig, environment: Mapping[str, str]) -> Identity | None:
    """The identity of a process that starts the tasks of a cluster; None for a task."""
    if not isinstance(run.cluster, choices.Supervised):
        return None
    start = run.cluster.start(run, environment)
    return Identity(
        "supervisor",
        "supervisor",
        may_find_run=start.may_find_run,
        patience_s=start.patience_s,
        start=start.name,
    )


def _topology(run: RunConfig, environment: Mapping[str, str]) -> Topology | None:
    """The cluster of this process; None for a single process."""
    return run.cluster.topology(run, environment)


def _of(cluster: Topology, me: Task, chiefs_role: str) -> Identity:
    if me.job == "worker" and me not in cluster.addresses:
        return Identity("evaluator", str(me), cluster, owns_folder=False)
    if me.job in ("worker", "ps"):
        return Identity("server", str(me), cluster, owns_folder=False)
    if me.job == topology.EVALUATOR.job:
        return Identity("evaluator", str(me), cluster, owns_folder=False)
    return Identity(chiefs_role, str(me), cluster, may_find_run=True)
