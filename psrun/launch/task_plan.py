"""The tasks of a supervised cluster."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.config import topology
from psrun.config.run_config import RunConfig
from psrun.config.topology import Task


@dataclass(frozen=True)
class TaskPlan:
    """The tasks, and how losses and the end of the run concern them.

    Attributes:
      jobs: number of tasks of each job with addresses, in the order of their start.
      restarted_together: jobs whose tasks all restart if one of them is lost.
      serving: jobs that are signaled when the run is over; the others exit without a signal.
      evaluator: the task that evaluates checkpoints, if any; a worker with an address, or a task without one.
    """

    jobs: dict[str, int]
    restarted_together: tuple[str, ...]
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
    if cluster.has_synchronous_workers:  # the chief is one of the workers
        return TaskPlan({"worker": num_tasks["worker"] - 1, "chief": 1}, ("worker", "chief"), (), None)
    # The chief first: it prepares its data while the servers start.
    jobs = {job: num_tasks[job] for job in ("chief", "ps", "worker", *topology.DATA_JOBS) if job in num_tasks}
    # A restarted chief would find tables of its predecessor in parameter servers that were not restarted.
    serving = ("ps", "worker", "evaluator", *topology.DATA_JOBS)
    return TaskPlan(jobs, ("ps", "chief"), serving, run_config.evaluator)
