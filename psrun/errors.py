"""What can go wrong, and the exit code of each.

PsrunError                      1   failed for good
  ConfigError                   2   bad configuration or usage
  DataError                     1   the data cannot be read, or is not what the run needs
    DataExhaustedError          1   the training data came to an end
  ClusterError                  1   the cluster is not what the run needs
    ServerStartError            1   a server of the cluster could not be started
    ChiefGoneError              1   a server had no chief for too long
    BudgetSpentError            1   tasks failed more often than they may be restarted
  CheckpointError               1   a checkpoint could not be written, or none is good
  ExportError                   1   a model could not be written, or could not be loaded again
  TaskLostError                 175 a task is lost, or not there, without which the run cannot go on: start me again
  SweepError                    1   a sweep, or a job of it, could not be run
  TrainingError                 1   a step failed
    NonFiniteLossError          1   the loss, or the gradient of a table, became NaN or infinite
    HookError                   1   a callable of trainer.hooks failed
Interrupted                     130 Ctrl-C; 175 SIGTERM, after a checkpoint where there are any: start me again
"""

from __future__ import annotations

import enum
import errno
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class ExitCode(enum.IntEnum):
    """How a psrun process ends. Codes of 128 and more mean "start me again"; schedulers read them so too."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 128 + signal.SIGINT
    RESTART = 175


class PsrunError(Exception):
    """Base of all errors that psrun raises on purpose: their text is written for the person who runs psrun."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, task: str | None = None) -> None:
        super().__init__(message)
        self.task = task


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the configuration: the key it hangs on (empty: the whole), what is wrong and what to do."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class ConfigError(PsrunError):
    """The configuration cannot be run. Holds every problem found, not only the first."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: Iterable[Problem] | str) -> None:
        self.problems = [Problem("", problems)] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class DataError(PsrunError):
    """The data cannot be read, or is not what the run needs."""


class DataExhaustedError(DataError):
    """The training data came to an end before the planned steps were done."""

    @classmethod
    def at(cls, step: int, planned: int) -> DataExhaustedError:
        """After `step` steps of those planned."""
        message = f"the training data came to an end after {step} steps, before the {planned} planned; "
        return cls(message + "make it endless with .repeat()")


class ClusterError(PsrunError):
    """The cluster is not what the run needs."""


class ServerStartError(ClusterError):
    """A server of the cluster could not be started."""


class ChiefGoneError(ClusterError):
    """A server had no chief for too long."""


class BudgetSpentError(ClusterError):
    """Tasks failed more often than they may be restarted."""


class CheckpointError(PsrunError):
    """A checkpoint could not be written, or there are some and none is good."""


class ExportError(PsrunError):
    """A model could not be written in a form that can be loaded."""


class TaskLostError(PsrunError):
    """A task without which the run cannot go on is lost or not there; another start resumes from a checkpoint."""

    exit_code = ExitCode.RESTART


class RunFolderError(PsrunError, OSError):
    """The run folder cannot be written to."""

    def __init__(self, folder: Path, error: OSError) -> None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        next_move = "; free some space, or choose another folder with hydra.run.dir=..." if full else ""
        super().__init__(f"the run folder {folder} cannot be written to: {error.strerror or error}{next_move}")
        self.errno = error.errno


class SweepError(PsrunError):
    """A sweep, or a job of it, could not be run."""


class TrainingError(PsrunError):
    """A training step failed."""


class NonFiniteLossError(TrainingError):
    """The loss, or the gradient of a table, became NaN or infinite."""

    @classmethod
    def of_loss(cls, loss: float, epoch: int) -> NonFiniteLossError:
        """The loss became `loss` in `epoch`."""
        hint = "a smaller optimizer.learning_rate, or a look at the data, may help"
        return cls(f"the loss became {loss} in epoch {epoch}; {hint}")


class HookError(TrainingError):
    """A callable of trainer.hooks failed."""


class Interrupted(PsrunError):
    """The run was ended from outside, by Ctrl-C or SIGTERM."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.exit_code = ExitCode.INTERRUPTED if signum == signal.SIGINT else ExitCode.RESTART


def ended(code: int | None) -> str:
    """How a process ended, by its exit code as of `subprocess`: negative for a signal."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
