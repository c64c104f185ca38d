"""The commands of Slurm that psrun uses."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from psrun.errors import ClusterError

_WITHIN_S = 60.0
# Variables by which users configure Slurm's commands; Slurm sets the other SLURM_* variables for the current job.
_CONFIGURING = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
# States of a job that runs or will run.
_ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "STOPPED",
          "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD")  # fmt: skip

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_QUEUE_FOR_S = 1.0
_QUEUE_WITHIN_S = 15.0  # a list of runs waits for it
_SHARE = 10
_HANDLED_WITHIN_S = 0.5  # a signal
# What sbatch says before it has sent a job.
_NOT_SENT = ("(connect failure)", "Could not establish a configuration", "Unable to process configuration file")
_NO_TIME = ("", "N/A", "Unknown")


@dataclass(frozen=True)
class JobState:
    """The state of a job, as reported by Slurm.

    Attributes:
      state: such as PENDING; empty if Slurm no longer knows the job.
      reason: why it is waiting, or how it ended.
      exit_code: of the batch script, as Slurm writes it (code:signal).
      start: when it started or starts, as Slurm expects; empty if it does not say so.
    """

    state: str
    reason: str = ""
    exit_code: str = ""
    start: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether it runs or will run."""
        return self.state in _ALIVE

    @property
    def waits(self) -> bool:
        return self.state in _WAITING


@dataclass(frozen=True)
class QueuedJob:
    """A job in Slurm's queue.

    Attributes:
      id: the number.
      state: such as PENDING.
      reason: why it waits.
      start: when it starts, as Slurm expects; empty if it does not say so.
      script: the path of its batch script.
    """

    id: str
    state: str
    reason: str
    start: str
    script: str

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def text(self) -> str:
        """Its state in words: 'pending (BeginTime) until 2026-11-29T18:19:32'."""
        text = self.state.lower()
        if self.waits and self.reason not in ("", "None"):
            text += f" ({self.reason})"
        if self.waits and self.start:
            text += f" until {self.start}"
        return text


class NotSentError(ClusterError):
    """A job was not submitted: Slurm cannot be reached."""


class _Queue:
    """The jobs of this user, of which Slurm is asked at most a tenth of the time: a list has many runs."""

    def __init__(self) -> None:
        self._jobs: list[QueuedJob] = []
        self._error: ClusterError | None = None
        self._valid_until_s = float("-inf")

    def forget(self) -> None:
        """The next question is asked: the queue has changed."""
        self._valid_until_s = float("-inf")

    def read(self) -> list[QueuedJob]:
        """Raises ClusterError if Slurm does not answer."""
        began_s = time.monotonic()
        if began_s > self._valid_until_s:
            self._error = None
            try:
                self._jobs = _queued()
            except ClusterError as error:
                self._error = error
            ended_s = time.monotonic()
            self._valid_until_s = ended_s + max(_QUEUE_FOR_S, _SHARE * (ended_s - began_s))
        if self._error is not None:
            raise self._error
        return self._jobs


def has_queue() -> bool:
    """Whether Slurm's queue can be seen from here."""
    return shutil.which("squeue") is not None


def _queued() -> list[QueuedJob]:
    if not has_queue():
        return []
    command = ["squeue", "--me", "--array", "--noheader", "--format=%i|%T|%r|%S|%o"]
    text = _run(*command, failed="Slurm does not show its queue", within_s=_QUEUE_WITHIN_S)
    jobs = []
    for line in text.splitlines():
        number, state, reason, start, script = line.split("|", 4)
        jobs.append(QueuedJob(number, state, reason, "" if start in _NO_TIME else start, script))
    return jobs


QUEUE = _Queue()


def needed(*commands: str) -> None:
    """Raises ClusterError if one of Slurm's commands is not installed."""
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        raise ClusterError(
            f"there is no {' and no '.join(missing)} here: submit from a host with Slurm's commands, use --dry-run, or "
            "choose cluster=local"
        )


def submit(script: Path) -> str:
    """Submits a batch script; returns the id of the job.

    The job has the environment of this process, without the variables of a job that this process may be in, such as
    an interactive one: they would apply its processors and memory to the new job.

    Raises:
      NotSentError: Slurm cannot be reached.
      ClusterError: Slurm rejects the job, or does not answer.
    """
    in_job = "SLURM_JOB_ID" in os.environ
    environment = {n: v for n, v in os.environ.items() if not in_job or n in _CONFIGURING or not n.startswith("SLURM_")}
    try:
        text = _run("sbatch", "--parsable", str(script), failed="Slurm rejected the job", environment=environment)
    except ClusterError as error:
        reason = str(error)
        if any(each in reason for each in _NOT_SENT):
            reason = reason.replace("Slurm rejected the job", "Slurm cannot be reached", 1)
            raise NotSentError(f"{reason}; nothing was submitted") from error
        raise
    return text.strip().partition(";")[0]


def requeue(job: str) -> None:
    """Requeues a job. Raises ClusterError if Slurm does not."""
    _run("scontrol", "requeue", job, failed="the job cannot be requeued")


def stop(job: str, *, now: bool) -> None:
    """Ends a job by `stop_command`. Raises ClusterError if Slurm does not.

    Args:
      now: whether the run ends without saving. Slurm has no signal for that: it asks by SIGTERM before it kills a job.
    """
    command = stop_command(job)
    failed = f"job {job} cannot be stopped"
    _run(*command, failed=failed)
    if now:
        with contextlib.suppress(ClusterError):  # it has ended
            time.sleep(_HANDLED_WITHIN_S)  # two signals of the same kind may arrive as one
            _run(*command, failed=failed)
            time.sleep(_HANDLED_WITHIN_S)
            _run("scancel", job, failed=failed)  # kills what is left


def cancel(job: str) -> None:
    """Cancels a job that waits or runs; nothing if it has ended. Raises ClusterError if Slurm does not."""
    try:
        QUEUE.forget()
        _run("scancel", job, failed=f"job {job} cannot be cancelled")
    except ClusterError:  # also for a job that has ended
        if look(job).is_alive:
            raise


def stop_command(job: str) -> list[str]:
    """The command that ends a job: psrun, which is the batch script, ends the run as with Ctrl-C.

    It saves, unless it is asked a second time. Slurm does not start the job again.
    """
    return ["scancel", "--batch", "--signal=INT", job]


def look(job: str) -> JobState:
    """The state of a job. Raises ClusterError if Slurm does not answer."""
    try:
        text = _run("scontrol", "--oneliner", "show", "job", job, failed=f"Slurm did not report the state of job {job}")
    except ClusterError as error:
        if "Invalid job id" in str(error):
            return JobState("")
        raise
    fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
    start = fields.get("StartTime", "")
    return JobState(
        fields.get("JobState", ""),
        fields.get("Reason", ""),
        fields.get("ExitCode", ""),
        "" if start in _NO_TIME else start,
    )


def _run(*command: str, failed: str, environment: Mapping[str, str] | None = None, within_s: float = _WITHIN_S) -> str:
    """Runs a command and returns its output. Raises ClusterError, which begins with `failed`."""
    try:
        completed = subprocess.run(
            command,
            env=environment,
            timeout=within_s,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"there is no {command[0]} here") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{failed}: {command[0]} did not answer within {within_s:.0f} s") from error
    if completed.returncode:
        problem = " ".join((completed.stderr or completed.stdout).split()) or f"exit code {completed.returncode}"
        raise ClusterError(f"{failed}: {problem}")
    return completed.stdout
