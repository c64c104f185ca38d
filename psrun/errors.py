"""The errors of psrun, and the exit code of each.

PsrunError                      1   failed for good
  ConfigError                   2   bad configuration or usage
  DataError                     1   the data cannot be read or does not fit the run
    DataExhaustedError          1   the training data ended early
  ClusterError                  1   the cluster does not fit the run
    ServerStartError            1   a server of the cluster could not be started
    ChiefGoneError              1   a server had no chief for too long
    BudgetSpentError            1   the restart budget is exhausted
  CheckpointError               1   a checkpoint could not be written, or no good one exists
  ExportError                   1   a model could not be written or loaded back
  TaskLostError                 175 the run lost a task that it needs: restart the process
  SweepError                    1   a sweep, or one of its jobs, could not run
  TrainingError                 1   a step failed
    NonFiniteLossError          1   the loss, or the gradient of a table, became NaN or infinite
    HookError                   1   a callable of trainer.hooks failed
Interrupted                     130 Ctrl-C; 175 SIGTERM or SIGHUP, after a checkpoint if checkpoints are on: restart
"""

from __future__ import annotations

import enum
import errno
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk
CANNOT_GROW = (*FULL, errno.EFBIG, errno.EIO)  # errors of a file that can be written otherwise


class ExitCode(enum.IntEnum):
    """Exit codes of psrun. Codes of 128 and more ask for a restart; schedulers read them the same way."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 128 + signal.SIGINT
    RESTART = 175


def final(code: int | None) -> ExitCode | None:
    """The exit code of a process that is not to be restarted; None for every other code, and while it runs."""
    return ExitCode(code) if code in (ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE) else None


class PsrunError(Exception):
    """Base class of all errors that psrun raises on purpose. The message is for the user."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, task: str | None = None) -> None:
        super().__init__(message)
        self.task = task


@dataclass(frozen=True)
class Problem:
    """A configuration error: its key (empty: the whole configuration), and a message with the remedy."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class ConfigError(PsrunError):
    """The configuration is invalid. Holds all problems, not only the first."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: Iterable[Problem] | str) -> None:
        self.problems = [Problem("", problems)] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class DataError(PsrunError):
    """The data cannot be read or does not fit the run."""


class DataExhaustedError(DataError):
    """The training data ended before the planned steps were done."""

    @classmethod
    def at(cls, step: int, planned: int) -> DataExhaustedError:
        """After `step` steps of those planned."""
        message = f"the training data ended after {step} of {planned} planned steps; "
        return cls(message + "make the dataset endless with .repeat()")


class ClusterError(PsrunError):
    """The cluster does not fit the run."""


class ServerStartError(ClusterError):
    """A server of the cluster could not be started."""


class ChiefGoneError(ClusterError):
    """A server had no chief for too long."""


class BudgetSpentError(ClusterError):
    """The restart budget is exhausted."""


class CheckpointError(PsrunError):
    """A checkpoint could not be written, or no good checkpoint exists."""


class ExportError(PsrunError):
    """A model could not be written, or the written model could not be loaded."""


class TaskLostError(PsrunError):
    """The run lost a task that it needs; a restart resumes from a checkpoint."""

    exit_code = ExitCode.RESTART


class RunFolderError(PsrunError, OSError):
    """The run folder cannot be written to."""

    def __init__(self, folder: Path, error: OSError) -> None:
        remedy = ""
        if error.errno in FULL:
            remedy = "; free disk space, or choose another folder with hydra.run.dir=..."
        if error.errno == errno.EFBIG:
            remedy = "; raise the limit of the size of files (ulimit -f)"
        super().__init__(f"the run folder {folder} cannot be written to: {error.strerror or error}{remedy}")
        self.errno = error.errno


class SweepError(PsrunError):
    """A sweep, or one of its jobs, could not run."""


class TrainingError(PsrunError):
    """A training step failed."""


class NonFiniteLossError(TrainingError):
    """The loss, or the gradient of a table, became NaN or infinite."""

    @classmethod
    def of_loss(cls, loss: float, epoch: int) -> NonFiniteLossError:
        """The loss became `loss` in `epoch`."""
        hint = "try a smaller optimizer.learning_rate, and check the data"
        return cls(f"the loss became {loss} in epoch {epoch}; {hint}")


class HookError(TrainingError):
    """A callable of trainer.hooks failed."""


class Interrupted(BaseException):
    """A signal, Ctrl-C, SIGTERM or SIGHUP, ended the run.

    Not an Exception: libraries and users' code handle exceptions as mistakes, and put others in their place.
    """

    def __init__(self, signum: int, reason: str = "") -> None:
        """By the signal `signum`, which was sent for a reason that psrun knows (empty: it does not)."""
        name = signal.Signals(signum).name
        super().__init__(f"interrupted by {name}" + (f": {reason}" if reason else ""))
        self.exit_code = ExitCode.INTERRUPTED if signum == signal.SIGINT else ExitCode.RESTART


def ended(code: int | None) -> str:
    """How a process ended, by its exit code as of `subprocess`: negative for a signal."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
