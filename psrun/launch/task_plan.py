"""The tasks of a cluster that is supervised."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.config import topology
from psrun.config.run_config import RunConfig
from psrun.config.topology import Task


@dataclass(frozen=True)
class TaskPlan:
    """Who there is, and whose loss means what.

    Attributes:
      jobs: those with an address, in the order of their start, and how many tasks each has.
      one_fate: jobs of which one lost task ends the attempt, so that all their tasks start again.
      serving: jobs that must be told when the run is over; the others see it by themselves.
      evaluator: the task that evaluates checkpoints, where one does; a worker with an address, or one without.
    """

    jobs: dict[str, int]
    one_fate: tuple[str, ...]
    serving: tuple[str, ...]
    evaluator: Task | None

    def addressed(self) -> list[Task]:
        """The tasks with an address, in the order of their start."""
        return [Task(job, index) for job, n in self.jobs.items() for index in range(n)]

    def tasks(self) -> list[Task]:
        """All of them, in the order of their start."""
        return list(dict.fromkeys([*self.addressed(), *([self.evaluator] if self.evaluator else [])]))


def of(run_config: RunConfig) -> TaskPlan:
    """The tasks of a supervised run."""
    num_tasks, cluster = run_config.num_tasks, run_config.cluster
    if cluster.has_synchronous_workers:  # whose chief is a worker too
        return TaskPlan({"worker": num_tasks["worker"] - 1, "chief": 1}, ("worker", "chief"), (), None)
    jobs = {job: num_tasks[job] for job in ("ps", "worker", "chief", *topology.DATA_JOBS) if job in num_tasks}
    # A chief that starts again would leave its tables behind in parameter servers that do not.
    serving = ("ps", "worker", "evaluator", *topology.DATA_JOBS)
    return TaskPlan(jobs, ("ps", "chief"), serving, run_config.evaluator)
