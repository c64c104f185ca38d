"""The commands of Slurm that psrun uses."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.errors import ClusterError, PsrunError

_WITHIN_S = 60.0
# Variables by which users configure Slurm's commands; Slurm sets the other SLURM_* variables for the current job.
_CONFIGURING = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
# States of a job that runs or will run.
_ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "STOPPED",
          "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD")  # fmt: skip


@dataclass(frozen=True)
class JobState:
    """The state of a job, as reported by Slurm.

    Attributes:
      state: such as PENDING; empty if Slurm no longer knows the job.
      reason: why it is waiting, or how it ended.
      exit_code: of the batch script, as Slurm writes it (code:signal).
    """

    state: str
    reason: str = ""
    exit_code: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether it runs or will run."""
        return self.state in _ALIVE

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def needed(*commands: str) -> None:
    """Raises ClusterError if one of Slurm's commands is not installed."""
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        raise ClusterError(
            f"there is no {' and no '.join(missing)} here: submit from a host with Slurm's commands, use --dry-run, or "
            "choose cluster=local"
        )


def submit(script: Path) -> str:
    """Submits a batch script; returns the id of the job. Raises ClusterError if Slurm rejects it.

    The job has the environment of this process, without the variables of a job that this process may be in, such as
    an interactive one: srun would apply their processors and memory to the new job.
    """
    in_job = "SLURM_JOB_ID" in os.environ
    environment = {n: v for n, v in os.environ.items() if not in_job or n in _CONFIGURING or not n.startswith("SLURM_")}
    completed = _run("sbatch", "--parsable", str(script), environment=environment)
    if completed.returncode:
        raise ClusterError(f"Slurm rejected the job: {_text(completed)} (script: {script})")
    return completed.stdout.strip().partition(";")[0]


def host_names(nodes: str) -> list[str]:
    """The names of nodes, which Slurm writes as n[0-3,7]. Raises ClusterError."""
    completed = _run("scontrol", "show", "hostnames", nodes)
    if completed.returncode:
        raise ClusterError(f"Slurm did not list the nodes {nodes}: {_text(completed)}")
    return completed.stdout.split()


def requeue(job: str) -> str | None:
    """Requeues a job; returns the problem, None if there is none."""
    try:
        completed = _run("scontrol", "requeue", job)
    except PsrunError as error:
        return str(error)
    return _text(completed) if completed.returncode else None


def look(job: str) -> JobState:
    """The state of a job. Raises ClusterError if Slurm does not answer."""
    completed = _run("scontrol", "--oneliner", "show", "job", job)
    if completed.returncode:
        if "Invalid job id" in completed.stderr:
            return JobState("")
        raise ClusterError(f"Slurm did not report the state of job {job}: {_text(completed)}")
    fields = dict(word.split("=", 1) for word in completed.stdout.split() if "=" in word)
    return JobState(fields.get("JobState", ""), fields.get("Reason", ""), fields.get("ExitCode", ""))


def _run(*command: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    try:
        return subprocess.run(command, env=environment, timeout=_WITHIN_S, check=False, **options)
    except FileNotFoundError as error:
        raise ClusterError(f"there is no {command[0]} here") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{command[0]} did not answer within {_WITHIN_S:.0f} s") from error


def _text(completed: subprocess.CompletedProcess[str]) -> str:
    return " ".join((completed.stderr or completed.stdout).split()) or f"exit code {completed.returncode}"
