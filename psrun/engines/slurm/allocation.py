"""The Slurm job of this process, from the SLURM_* variables: how many tasks it is for."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from psrun.config import groups
from psrun.config.clusters import ClusterRun
from psrun.config.run_config import RESUME
from psrun.config.topology import EVALUATOR
from psrun.errors import ConfigError, ExitCode, Problem

JOB_ID = "SLURM_JOB_ID"
EXIT_SIGNAL = signal.SIGHUP  # asks a task to exit; Slurm never sends it
_GIVEN_UP_S = 60.0  # until other nodes see what was written on a shared disk
_INTERACTIVE_STEP = "4294967290"  # the shell of salloc, where Slurm runs it on a node of the job
_COMMAND = "psrun submit slurm GROUP=NAME KEY=VALUE..., or psrun cluster=slurm once in a batch script"


@dataclass(frozen=True)
class Job:
    """A Slurm job.

    Attributes:
      id: the same after a requeue.
      restart: number of times that it was requeued.
      num_tasks: how many tasks it has room for, by component; most jobs have one.
    """

    id: str
    restart: int
    num_tasks: tuple[int, ...]

    @property
    def key(self) -> str:
        """A name that is unique to this start of the job."""
        return f"slurm-{self.id}.{self.restart}"

    @property
    def patience_s(self) -> float:
        """How long processes on nodes that Slurm has given up may still use the run folder."""
        return _GIVEN_UP_S if self.restart else 0.0


def run_name(environment: Mapping[str, str]) -> str | None:
    """Part of the run folder's name that is the same when Slurm runs a batch script again; None outside of one."""
    if JOB_ID not in environment or "SLURM_PROCID" not in environment:
        return None
    return f"slurm-{environment[JOB_ID]}-{zlib.crc32(repr(sys.argv[1:]).encode()):08x}"


def job_of(run: ClusterRun, environment: Mapping[str, str]) -> Job:
    """The job of a process that is to start the tasks of the run.

    Raises:
      ConfigError: it is in no job or in a step, or the job has no room for all tasks.
      SystemExit: it is one of several processes of a step; the first one reports that.
    """
    if JOB_ID not in environment:
        raise _problem(f"is slurm, but this process is not in a Slurm job; use {_command()}")
    if environment.get("SLURM_STEP_ID", _INTERACTIVE_STEP) != _INTERACTIVE_STEP:
        if environment.get("SLURM_PROCID", "0") != "0":
            raise SystemExit(ExitCode.USAGE)
        raise _problem(
            f"is slurm, but srun has started this process, and psrun starts all tasks itself; use {_command()}"
        )
    try:
        num_tasks = tuple(_sum(environment[_SLOTS + suffix]) for suffix in _components(environment))
        job = Job(environment[JOB_ID], int(environment.get("SLURM_RESTART_COUNT", 0)), num_tasks)
    except (KeyError, ValueError) as error:
        raise _problem(f"is slurm, but the SLURM_* variables are inconsistent: {error}") from error
    needed = sum(run.num_tasks.values())
    if sum(num_tasks) < needed:
        raise _problem(
            f"this Slurm job is for {sum(num_tasks)} tasks, too few: the run has {needed} ({described(run)}); "
            f"sbatch --ntasks={needed}, or other cluster.num_workers, cluster.num_ps"
        )
    return job


def options(job: Job, num_tasks: int, environment: Mapping[str, str]) -> list[tuple[list[str], int]]:
    """The options of `srun` for `num_tasks` tasks and how many of them, for each component of the job that has some."""
    found = []
    suffixes = _components(environment)
    for index, (suffix, room) in enumerate(zip(suffixes, job.num_tasks, strict=True)):
        count = min(room, num_tasks)
        num_tasks -= count
        if count:
            cpus = environment.get("SLURM_CPUS_PER_TASK" + suffix, 1)
            component = [f"--het-group={index}"] if suffix else []
            memory = (
                ["--mem=0"] if "SLURM_MEM_PER_NODE" + suffix in environment else []
            )  # else the first step takes all
            found.append(([*component, f"--ntasks={count}", f"--cpus-per-task={cpus}", *memory], count))
    return found


def described(run: ClusterRun) -> str:
    """The tasks of the run, such as 'chief, 2 ps, 2 workers'."""
    single = ("chief", EVALUATOR.job)
    titles = [
        job if job in single else f"{count} {job}{'s' if count > 1 and job != 'ps' else ''}"
        for job, count in run.num_tasks.items()
    ]
    return ", ".join(titles)


def _command() -> str:
    """The command that starts the run of this process on Slurm."""
    others = sys.argv[1:]
    if others[:1] == [RESUME] and len(others) > 1:
        others = [f"resume={others[1]}", *others[2:]]
    if not any(each.startswith("resume=") for each in others):
        return _COMMAND
    shown = []
    for each in others:
        key, _, value = each.partition("=")
        if key == "resume":
            shown.append(resume_argument(groups.unquoted(value)))
        elif each != "cluster=slurm":
            shown.append(shlex.quote(each))
    return " ".join(["psrun submit slurm", *shown])


def resume_argument(folder: str) -> str:
    """The key that resumes the run in a folder, as a shell takes it, with quotes only where they are needed."""
    if re.fullmatch(r"[\w./+:@-]+", folder):
        return f"resume={folder}"
    return shlex.quote(f"resume={groups.quoted(Path(folder))}")


_SLOTS = "SLURM_TASKS_PER_NODE"


def _components(environment: Mapping[str, str]) -> list[str]:
    """The endings of the variables for each component of the job; one without an ending for most jobs."""
    size = int(environment.get("SLURM_HET_SIZE", 0))
    return [f"_HET_GROUP_{index}" for index in range(size)] or [""]


def _sum(text: str) -> int:
    """The sum of numbers by node, which Slurm writes as 4,1(x3)."""
    total = 0
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"{_SLOTS}={text}")
        total += int(match[1]) * int(match[2] or 1)
    return total


def _problem(message: str) -> ConfigError:
    return ConfigError([Problem("cluster", message)])
