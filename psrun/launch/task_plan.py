"""The tasks of a cluster that is supervised."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.config import choices, topology
from psrun.config.run_config import RunConfig
from psrun.config.topology import Task

EVALUATOR = Task("evaluator", 0)


@dataclass(frozen=True)
class Lineup:
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


def of(run_config: RunConfig) -> Lineup:
    """The tasks of a supervised run."""
    cluster, sidecar = run_config.cluster, run_config.sidecar
    if isinstance(cluster, choices.MultiWorkerMirrored):  # whose chief is a worker too
        return Lineup({"worker": cluster.num_workers - 1, "chief": 1}, ("worker", "chief"), (), None)
    assert isinstance(cluster, choices.Local)
    jobs = {"ps": cluster.num_ps, "worker": cluster.num_workers, "chief": 1}
    if run_config.data_service:
        jobs |= {topology.DISPATCHER.job: 1, "data_worker": cluster.num_data_workers}
    evaluator = EVALUATOR if sidecar else None
    if isinstance(sidecar, choices.SidecarThread):
        evaluator = Task("worker", cluster.num_workers - 1)
    # A chief that starts again would leave its tables behind in parameter servers that do not.
    return Lineup(jobs, ("ps", "chief"), ("ps", "worker", "evaluator", *topology.DATA_JOBS), evaluator)
