"""The engine of a run on a Ray cluster, for its supervisor, which is the driver in Ray's terms."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from psrun.config import choices
from psrun.errors import ExitCode
from psrun.launch.backend import Backend, Launch, TaskHandle
from psrun.launch.ray import capacity, connection
from psrun.launch.ray.fleet import Fleet
from psrun.launch.ray.tasks import RayTask


class RayBackend(Backend):
    """If a node is lost, all tasks are placed again: those of that node get other addresses.

    Raises:
      ConfigError: there is no Ray cluster at `cluster.address`, or its nodes do not fit the run.
      ClusterError: the Ray cluster cannot be used.
    """

    def __init__(self, launch: Launch) -> None:
        cluster, plan = launch.run.cluster, launch.plan
        assert isinstance(cluster, choices.Ray)
        num_cpus = sum(need.num_cpus for need in capacity.needs(cluster, plan.tasks()).values())
        launch.console.file = sys.stdout
        with contextlib.ExitStack() as stack:
            # To the log: Ray prints pages on every lost node.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            with launch.console.status("connecting to Ray"):
                stack.enter_context(connection.opened(cluster, num_cpus=num_cpus))
            self._fleet = Fleet(cluster, plan, launch.folder, launch.reporter, launch.stop)
            self._until_closed = stack.pop_all()
        tasks = {task: RayTask(task, self._fleet, launch.folder.path) for task in plan.tasks()}
        super().__init__(tasks, self._fleet.addresses)

    def find_lost_machines(self) -> None:
        self._fleet.check_nodes()

    def must_move(self, tasks: Sequence[TaskHandle]) -> bool:
        if all(self._fleet.lost(each.task) is None for each in tasks):
            return False
        self._fleet.invalidate()
        return True

    def close(self, code: ExitCode) -> None:
        self._until_closed.close()
