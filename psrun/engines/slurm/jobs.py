"""Slurm's own commands, as far as psrun uses them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from psrun.errors import ClusterError, PsrunError

_WITHIN_S = 60.0
# States of a job that has not run or that goes on: it runs now, or will.
_ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "STOPPED",
          "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD")  # fmt: skip


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job.

    Attributes:
      state: such as PENDING; empty where Slurm does not know the job any more.
      reason: why it waits, or how it ended.
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
    """Raises ClusterError where one of Slurm's commands is not there."""
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        raise ClusterError(
            f"there is no {' and no '.join(missing)} here: submit from a host where Slurm's commands are installed "
            "(--dry-run needs none), or see cluster=local"
        )


def submit(script: Path) -> str:
    """Hands a batch script to Slurm; returns the id of the job. Raises ClusterError where Slurm refuses it."""
    done = _said("sbatch", "--parsable", str(script))
    if done.returncode:
        raise ClusterError(f"Slurm refuses the job: {_text(done)} (script: {script})")
    return done.stdout.strip().partition(";")[0]


def requeue(job: str) -> str | None:
    """Has a job start again; returns why that is not possible, None where it is."""
    try:
        done = _said("scontrol", "requeue", job)
    except PsrunError as error:
        return str(error)
    return _text(done) if done.returncode else None


def look(job: str) -> JobState:
    """How a job is. Raises ClusterError where Slurm does not answer."""
    done = _said("scontrol", "--oneliner", "show", "job", job)
    if done.returncode:
        if "Invalid job id" in done.stderr:
            return JobState("")
        raise ClusterError(f"Slurm does not say how job {job} is: {_text(done)}")
    said = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return JobState(said.get("JobState", ""), said.get("Reason", ""), said.get("ExitCode", ""))


def _said(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_WITHIN_S, stdin=subprocess.DEVNULL, check=False
        )
    except FileNotFoundError as error:
        raise ClusterError(f"there is no {command[0]} here") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{command[0]} has not answered for {_WITHIN_S:.0f} s") from error


def _text(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
