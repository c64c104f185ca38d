"""The driver of a run on a Ray cluster: the supervisor of its tasks on all nodes. Does not import TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from rich.console import Console

from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.config.topology import Task
from psrun.errors import ExitCode
from psrun.launch import task_plan
from psrun.launch.ray import connection
from psrun.launch.ray.backend import RayBackend
from psrun.launch.supervisor import Supervisor
from psrun.launch.task_processes import TaskHandle
from psrun.process import Stop
from psrun.results.console import ConsoleSink
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder


def run(run_config: RunConfig, folder: RunFolder, stop: Stop, console: Console, *, started_s: float) -> ExitCode:
    """Runs the whole cluster to the end of its chief, as `psrun.launch.supervisor.run` does on one machine.

    Raises:
      ConfigError: there is no Ray cluster at `cluster.address`, or its nodes do not fit the run.
      ClusterError: the Ray cluster cannot be used, or no longer has room after the loss of a node.
      BudgetSpentError: the restart budget is exhausted.
    """
    cluster = run_config.cluster
    assert isinstance(cluster, choices.Ray)
    plan = task_plan.of(run_config)
    console.file = sys.stdout
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # to the log: Ray prints pages on every lost node
        with console.status("connecting to Ray"):
            stack.enter_context(connection.opened(cluster, plan.tasks()))
        backend = RayBackend(cluster, plan, folder, Reporter([folder.journal], started_s=started_s), stop)
        sink = ConsoleSink(console)
        driver = _Driver(backend, run_config, plan, backend.tasks, backend.addresses, folder, sink, started_s)
        stop.at_once = connection.close  # and all actors end with their driver
        return driver.run(stop)


class _Driver(Supervisor):
    """Restarts all tasks if a node was lost: those of that node get other addresses."""

    def __init__(self, backend: RayBackend, *others: Any) -> None:
        super().__init__(*others)
        self._backend = backend

    def _cause_of_exit(self, task: TaskHandle) -> tuple[Task, str]:
        self._backend.check_nodes()  # a chief reports a lost parameter server long before Ray reports its node
        return super()._cause_of_exit(task)

    def _restarted_with(self, lost: TaskHandle) -> list[TaskHandle]:
        group = super()._restarted_with(lost)
        if all(self._backend.lost_node(member.task) is None for member in group):
            return group
        self._backend.place_again()
        return list(self._tasks.values())
