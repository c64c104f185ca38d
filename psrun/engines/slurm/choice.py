"""`cluster=slurm`: its keys in the configuration, and its answers to the core."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from psrun.config.clusters import ClusterRun, EngineJob, OnSeveralMachines, RestartLimits, Start, Supervised
from psrun.config.schema import at_least
from psrun.engines.slurm import allocation, commands
from psrun.errors import ClusterError, Problem

SCRIPT = "slurm.sh"  # in the run folder
_TIME = re.compile(r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2}|INFINITE|UNLIMITED", re.IGNORECASE)


def limit_s(time: str) -> int:
    """A time limit of sbatch in seconds, as Slurm rounds it up to minutes; 0 for none."""
    if not time[0].isdigit():
        return 0
    days, has_days, rest = time.rpartition("-")
    numbers = [int(number) for number in rest.split(":")]
    if has_days:
        units = (3600, 60, 1)  # D-HH, D-HH:MM and D-HH:MM:SS
    elif len(numbers) == 3:
        units = (3600, 60, 1)
    else:
        units = (60, 1, 0)  # M and MM:SS
    total_s = int(days or 0) * 86400
    for number, unit in zip(numbers, units, strict=False):
        total_s += number * unit
    return -(-total_s // 60) * 60


@dataclass(frozen=True)
class SlurmJob:
    """A batch job; None for Slurm's default.

    Attributes:
      time: time limit in the format of sbatch, such as 30 (minutes), 2:00:00 or 1-12; 0 for none.
      nodes: number of nodes.
      memory_per_cpu: such as 4G.
      warn_s: time before the limit to save a checkpoint and requeue the job.
      setup: shell lines to run before the tasks start, such as 'module load python'.
      options: further sbatch options, such as --constraint=ib.
    """

    time: str | int | None
    partition: str | None
    account: str | None
    qos: str | None
    memory_per_cpu: str | int | None
    setup: list[str]
    options: list[str]
    nodes: int | None = at_least(1)
    cpus_per_task: int = at_least(1)
    warn_s: int = at_least(10)


@dataclass(frozen=True)
class Slurm(OnSeveralMachines, Supervised):
    """The nodes of a Slurm job, where the tasks run in a job step.

    Attributes:
      restart: the budget also limits the requeues for a lost node that psrun requests itself; `stop_timeout_s` must be
        less than Slurm's KillWait.
      interface: network interface between nodes, such as ib0; None for the route to the supervisor's node.
    """

    implementation: ClassVar[str] = "psrun.engines.slurm.steps:SlurmBackend"
    fits_in_sweep: ClassVar[bool] = False
    exit_signal: ClassVar[int | None] = allocation.EXIT_SIGNAL
    waits_for: ClassVar[str] = "its Slurm job"
    restart: RestartLimits = field(kw_only=True)
    interface: str | None = field(kw_only=True)
    num_workers: int = at_least(1)
    num_ps: int = at_least(1)

    @property
    def hang_limits(self) -> Any:
        return self

    @classmethod
    def run_name(cls, environment: Mapping[str, str]) -> str | None:
        return allocation.run_name(environment)

    @classmethod
    def job(cls, environment: Mapping[str, str]) -> dict[str, Any]:
        if allocation.JOB_ID not in environment:
            return {}
        return {"slurm_job": environment[allocation.JOB_ID]}

    @classmethod
    def where(cls, process: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        host = super().where(process, config)
        if "slurm_job" not in process:  # psrun was started without Slurm's variables
            return host
        job = f"job {process['slurm_job']}"
        return f"{job} on {host}" if host else job

    @classmethod
    def resume_command(cls, folder: Path, overrides: Sequence[str], changes: Sequence[str] = ()) -> str:
        return " ".join(["psrun submit slurm", allocation.resume_argument(str(folder)), *map(shlex.quote, changes)])

    @classmethod
    def jobs(cls, folder: Path, recorded: Sequence[Mapping[str, Any]]) -> list[EngineJob]:
        numbers = {str(each["slurm_job"]) for each in recorded if "slurm_job" in each}
        own_script = os.path.realpath(folder / SCRIPT)
        found = []
        for job in commands.QUEUE.read():
            if job.id in numbers or os.path.realpath(job.script) == own_script:
                found.append(EngineJob(cls, f"Slurm job {job.id}", job.text, job.waits, {"slurm_job": job.id}))
        return sorted(found, key=lambda job: not job.waits)

    @classmethod
    def stop(cls, job: Mapping[str, Any], *, waits: bool, is_here: bool, now: bool) -> bool:
        number = job.get("slurm_job")
        if number is None:  # sbatch got no answer, and Slurm has no job; or psrun was started without Slurm's variables
            return waits
        if waits:
            commands.cancel(str(number))
            return True
        try:
            commands.stop(str(number), now=now)
        except ClusterError as error:  # also if it has no batch script, such as in salloc
            if is_here:
                return False
            command = " ".join(commands.stop_command(str(number)))
            raise ClusterError(f"{error}; where Slurm's commands are: {command}") from error
        return True

    def start(self, run: ClusterRun, environment: Mapping[str, str]) -> Start:
        job = allocation.job_of(run, environment)
        return Start(name=job.key, may_find_run=True, patience_s=job.patience_s)

    def problems(self, config: ClusterRun) -> list[Problem]:
        job = config.submission
        if not isinstance(job, SlurmJob):
            return []
        found = []
        if job.time is not None and not _TIME.fullmatch(str(job.time)):
            message = f"is {str(job.time)!r}; write minutes (90), MM:SS, HH:MM:SS (2:00:00), D-HH or D-HH:MM:SS"
            found.append(Problem("slurm.time", message))
        elif job.time is not None and 0 < limit_s(str(job.time)) <= job.warn_s:
            message = (
                f"is {job.time}: {limit_s(str(job.time)) // 60} min is not longer than slurm.warn_s={job.warn_s} s, "
                "the time to save before the limit; set slurm.time higher or slurm.warn_s lower"
            )
            found.append(Problem("slurm.time", message))
        save_s = self.restart.stop_timeout_s
        if job.warn_s <= save_s:
            limit = f"cluster.restart.stop_timeout_s={save_s:g}, the time to save"
            found.append(Problem("slurm.warn_s", f"is {job.warn_s}, must be greater than {limit}"))
        return found
