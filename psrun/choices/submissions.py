"""What engines are told when a run is handed over to them: resources, queues and the like."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.schema import at_least


@dataclass(frozen=True)
class SlurmJob:
    """A batch job; None leaves the choice to Slurm.

    Attributes:
      time: limit of the job as sbatch takes it, such as 30 (minutes), 2:00:00 or 1-12.
      nodes: over how many the tasks are spread.
      memory_per_cpu: such as 4G.
      warn_s: how long before the limit the run saves a checkpoint and the job is requeued.
      setup: lines of shell to run before the tasks are started, such as 'module load python'.
      options: of sbatch, beside these, such as --constraint=ib.
    """

    time: str | int | None
    partition: str | None
    account: str | None
    qos: str | None
    nodes: int | None
    memory_per_cpu: str | int | None
    setup: list[str]
    options: list[str]
    cpus_per_task: int = at_least(1)
    warn_s: int = at_least(10)


Submission = SlurmJob
# By the cluster that they go with, which is also the name of their node in the configuration.
SUBMISSIONS: dict[str, type] = {"slurm": SlurmJob}
