"""The Slurm job of this process, from the SLURM_* variables: its nodes, and how many tasks each has room for."""

from __future__ import annotations

import re
import signal
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psrun.config import topology
from psrun.config.run_config import RunConfig
from psrun.config.topology import EVALUATOR, Task
from psrun.errors import ConfigError, ExitCode, Problem
from psrun.launch.slurm import commands

EXIT_SIGNAL = signal.SIGHUP  # asks a task to exit; Slurm never sends it
_GIVEN_UP_S = 60.0  # until other nodes see what was written on a shared disk
_INTERACTIVE_STEP = "4294967290"  # the shell of salloc, where Slurm runs it on a node of the job
_COMMAND = "psrun submit slurm GROUP=NAME KEY=VALUE..., or psrun cluster=slurm once in a batch script"


@dataclass(frozen=True)
class Node:
    """A node of the job.

    Attributes:
      num_tasks: how many tasks Slurm has allocated it for.
      options: of `srun`, for a task there.
    """

    name: str
    num_tasks: int
    options: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A Slurm job.

    Attributes:
      id: the same after a requeue.
      restart: number of times that it was requeued.
      num_tasks: how many tasks it has room for, on all nodes.
    """

    id: str
    restart: int
    num_tasks: int

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
    if "SLURM_JOB_ID" not in environment or "SLURM_PROCID" not in environment:
        return None
    return f"slurm-{environment['SLURM_JOB_ID']}-{zlib.crc32(repr(sys.argv[1:]).encode()):08x}"


def job_of(run: RunConfig, environment: Mapping[str, str]) -> Job:
    """The job of a process that is to start the tasks of the run.

    Raises:
      ConfigError: it is in no job or in a step, or the job has no room for all tasks.
      SystemExit: it is one of several processes of a step; the first one reports that.
    """
    if "SLURM_JOB_ID" not in environment:
        raise _problem(f"is slurm, but this process is not in a Slurm job; use {_COMMAND}")
    if environment.get("SLURM_STEP_ID", _INTERACTIVE_STEP) != _INTERACTIVE_STEP:
        if environment.get("SLURM_PROCID", "0") != "0":
            raise SystemExit(ExitCode.USAGE)
        raise _problem(
            f"is slurm, but srun has started this process, and psrun starts all tasks itself; use {_COMMAND}"
        )
    try:
        slots = [num for suffix in _components(environment) for num in _counts(environment[_SLOTS + suffix])]
        job = Job(environment["SLURM_JOB_ID"], int(environment.get("SLURM_RESTART_COUNT", 0)), sum(slots))
    except (KeyError, ValueError) as error:
        raise _problem(f"is slurm, but the SLURM_* variables are inconsistent: {error}") from error
    needed = sum(run.num_tasks.values())
    if job.num_tasks < needed:
        raise _problem(
            f"this Slurm job is for {job.num_tasks} tasks, too few: the run has {needed} ({described(run)}); "
            f"sbatch --ntasks={needed}, or other cluster.num_workers, cluster.num_ps"
        )
    return job


def nodes_of(environment: Mapping[str, str]) -> list[Node]:
    """The nodes of the job, those of all components of a heterogeneous job. Raises ClusterError."""
    nodes = []
    for index, suffix in enumerate(_components(environment)):
        options = [f"--cpus-per-task={environment.get('SLURM_CPUS_PER_TASK' + suffix, 1)}"]
        if suffix:
            options.append(f"--het-group={index}")
        if "SLURM_MEM_PER_NODE" + suffix in environment:
            options.append("--mem=0")  # else the first task gets it all, and the others wait for it
        names = commands.host_names(environment["SLURM_JOB_NODELIST" + suffix])
        counts = _counts(environment[_SLOTS + suffix])
        nodes += [Node(name, num_tasks, tuple(options)) for name, num_tasks in zip(names, counts, strict=True)]
    return nodes


def placement(tasks: Sequence[Task], nodes: Sequence[Node]) -> dict[Task, Node] | None:
    """The tasks on the nodes, in the order of both; None without room for all."""
    slots = [node for node in nodes for _ in range(node.num_tasks)]
    return dict(zip(tasks, slots, strict=False)) if len(slots) >= len(tasks) else None


def described(run: RunConfig) -> str:
    """The tasks of the run, such as 'chief, 2 ps, 2 workers'."""
    single = ("chief", EVALUATOR.job, topology.DISPATCHER.job)
    titles = [
        job if job in single else f"{count} {job}{'s' if count > 1 and job != 'ps' else ''}"
        for job, count in run.num_tasks.items()
    ]
    return ", ".join(titles)


_SLOTS = "SLURM_TASKS_PER_NODE"


def _components(environment: Mapping[str, str]) -> list[str]:
    """The endings of the variables for each component of the job; one without an ending for most jobs."""
    size = int(environment.get("SLURM_HET_SIZE", 0))
    return [f"_HET_GROUP_{index}" for index in range(size)] or [""]


def _counts(text: str) -> list[int]:
    """Numbers by node, which Slurm writes as 4,1(x3)."""
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"{_SLOTS}={text}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _problem(message: str) -> ConfigError:
    return ConfigError([Problem("cluster", message)])
