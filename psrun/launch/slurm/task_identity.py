"""The identity of this process from the SLURM_* variables: its step, its node and its task of the run."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from psrun.config import topology
from psrun.config.run_config import RunConfig
from psrun.config.topology import EVALUATOR, Task
from psrun.errors import ConfigError, ExitCode, Problem

AGENT_SIGNAL = signal.SIGHUP  # asks a task to exit; Slurm never sends it
_GIVEN_UP_S = 60.0  # until other nodes see what was written on a shared disk


@dataclass(frozen=True)
class Step:
    """A job step as seen by one of its tasks. The components of a heterogeneous job share one step.

    Attributes:
      job: its id; the same in all components and after a requeue.
      step: its id within the job.
      restart: number of times that the job was requeued.
      index: of this task, from 0, over all components.
      num_tasks: over all components.
      node: on which this task is.
      nodes: of the step, as Slurm writes them.
      launch_address: address of the host that started the step; None if Slurm does not provide it.
    """

    job: str
    step: str
    restart: int
    index: int
    num_tasks: int
    node: str
    nodes: str
    launch_address: str | None

    @property
    def key(self) -> str:
        """A name that is unique to this start of the step."""
        return f"slurm-{self.job}.{self.step}.{self.restart}"

    @property
    def patience_s(self) -> float:
        """How long processes on nodes that Slurm has given up may still use the run folder."""
        return _GIVEN_UP_S if self.restart else 0.0


def run_name(environment: Mapping[str, str]) -> str | None:
    """Part of the run folder's name that all tasks of a step agree on, also after a requeue.

    None if this process is in no step.
    """
    if "SLURM_JOB_ID" not in environment or "SLURM_STEP_ID" not in environment:
        return None
    return f"slurm-{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"


def from_environment(environment: Mapping[str, str], *, command: str) -> Step:
    """The step of this process.

    Args:
      command: the right command to start the step, for error messages.

    Raises:
      ConfigError: the process is in no step.
    """
    if "SLURM_JOB_ID" not in environment:
        message = "is slurm, but this process is not in a Slurm job; use psrun submit slurm GROUP=NAME KEY=VALUE... or "
        raise ConfigError([Problem("cluster", f"{message}{command}")])
    if "SLURM_STEP_ID" not in environment or "SLURM_PROCID" not in environment:
        message = f"is slurm, but this process is not in a step of Slurm job {environment['SLURM_JOB_ID']}: "
        raise ConfigError([Problem("cluster", f"{message}start it with {command}")])
    try:
        return Step(
            job=environment["SLURM_JOB_ID"],
            step=environment["SLURM_STEP_ID"],
            restart=int(environment.get("SLURM_RESTART_COUNT", 0)),
            index=int(environment["SLURM_PROCID"]),
            num_tasks=int(environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"]),
            node=environment.get("SLURMD_NODENAME", "?"),
            nodes=environment.get("SLURM_STEP_NODELIST", "?"),
            launch_address=environment.get("SLURM_LAUNCH_NODE_IPADDR"),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            [Problem("cluster", f"is slurm, but the SLURM_* variables are inconsistent: {error}")]
        ) from error


def all_tasks(run: RunConfig) -> list[Task]:
    """The tasks of the run, in the order of their numbers in Slurm."""
    num_tasks = run.num_tasks
    jobs = [job for job in ("chief", "ps", "worker", *topology.DATA_JOBS, EVALUATOR.job) if job in num_tasks]
    return [Task(job, index) for job in jobs for index in range(num_tasks[job])]


def described(tasks: list[Task]) -> str:
    """Such as 'chief, 2 ps, 2 workers'."""
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task.job] = counts.get(task.job, 0) + 1
    one = ("chief", "evaluator", topology.DISPATCHER.job)
    titles = {job: job if job in (*one, "ps") or n == 1 else f"{job}s" for job, n in counts.items()}
    return ", ".join(titles[job] if job in one else f"{n} {titles[job]}" for job, n in counts.items())


def task_of(run: RunConfig, environment: Mapping[str, str]) -> tuple[Step, Task]:
    """The step of this process and its task of the run.

    Raises:
      ConfigError: it is in no step, or the step and the run differ in the number of tasks.
      SystemExit: the same; the first task reports the reason for all.
    """
    tasks = all_tasks(run)
    command = f"srun --ntasks={len(tasks)} psrun cluster=slurm ..."
    step = from_environment(environment, command=command)
    if step.num_tasks != len(tasks):
        if step.index:
            raise SystemExit(ExitCode.USAGE)
        few = "few" if step.num_tasks < len(tasks) else "many"
        message = (
            f"this Slurm step has {step.num_tasks} tasks, too {few}: the run has {len(tasks)} ({described(tasks)}); "
            f"{command}, or other cluster.num_workers, cluster.num_ps"
        )
        raise ConfigError([Problem("cluster", message)])
    return step, tasks[step.index]
