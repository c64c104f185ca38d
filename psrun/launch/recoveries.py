"""Failures of tasks, from the loss to the recovery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psrun.config.topology import CHIEF, Task
from psrun.errors import ExitCode
from psrun.launch.hang_detector import TrainingStatus
from psrun.results.events import Reporter
from psrun.results.run_folder import Earlier
from psrun.results.summary import PENDING
from psrun.results.task_files import Heartbeat


@dataclass
class _Failure:
    """A lost task, until the first step after its replacement.

    Attributes:
      step: last step before the failure; 0 if an earlier failure, open too, has undone it.
      attempt: whether the training had to restart, rather than continue without the task.
      before_s: seconds between the failure and its record here.
      restored: step from which the training resumes; None until that is known.
      back: status of the training when the task was up again.
    """

    task: Task
    cause: str
    at_s: float  # since the run began
    step: int
    attempt: bool
    before_s: float = 0.0
    restored: int | None = None
    back: TrainingStatus | None = None


class Recoveries:
    """Measures recoveries: from a failure to the first step after it.

    Attributes:
      rows: the recoveries in run.json.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._open: list[_Failure] = []
        self.rows: list[dict[str, Any]] = []

    def failed(self, task: Task, cause: str, *, step: int, attempt: bool, before_s: float = 0.0) -> None:
        """Begins a recovery. Losses that follow each other before a step is done have a row each.

        Args:
          before_s: seconds since the failure.
        """
        is_lost_already = attempt and any(failure.attempt for failure in self._open)
        at_s = self._reporter.wall_s
        self._open.append(_Failure(task, cause, at_s, 0 if is_lost_already else step, attempt, before_s))

    def restored(self, step: int) -> None:
        """A new chief resumes from the checkpoint of `step`."""
        for failure in self._open:
            failure.restored = step if failure.attempt else failure.restored

    def look(self, training: TrainingStatus, is_up: Callable[[Task], bool]) -> None:
        """Reports the recoveries that are complete."""
        for failure in list(self._open):
            stands_alone = failure.task.job == "evaluator" and not failure.attempt
            if is_up(failure.task) and (stands_alone or _trains_again(failure, training)):
                self._open.remove(failure)
                self._recovered(failure, training.step or 0)

    def end(self, step: int) -> None:
        """The training has ended at `step`: lost attempts before it have recovered."""
        for failure in [failure for failure in self._open if failure.attempt]:
            self._open.remove(failure)
            self._recovered(failure, step)

    def count_repeated(self, steps: int) -> None:
        """Steps of a lost worker that were applied and then run again are counted at the next join."""
        workers = [row for row in self.rows if row["task"].startswith("worker")]
        if workers:
            others = sum(row["steps_repeated"] for row in workers[:-1])
            workers[-1]["steps_repeated"] = max(workers[-1]["steps_repeated"], steps - others)

    def _recovered(self, failure: _Failure, step: int) -> None:
        lost = max(0, failure.step - (failure.restored or 0)) if failure.attempt else 0
        row = {
            "task": str(failure.task),
            "cause": failure.cause,
            "at_s": round(failure.at_s, 3),
            "seconds": round(failure.before_s + self._reporter.wall_s - failure.at_s, 3),
            "steps_lost": lost,
            "steps_repeated": lost,
        }
        self.rows.append(row)
        self._reporter.emit("recovery", step=step, **row)


@dataclass(frozen=True)
class Loss:
    """The end of an attempt, kept in run.json until a later attempt trains.

    Attributes:
      task: name of the task.
      at_s: time, as of `time.time`.
      step: last step of the attempt.
    """

    task: str
    cause: str
    at_s: float
    step: int


def earlier_loss(earlier: Earlier | None, beat: Heartbeat | None) -> Loss | None:
    """The end of the attempt before this one; None if it ended for good or a user ended it.

    Args:
      beat: last heartbeat of its chief, which remains if the chief could not remove it.
    """
    if earlier is None:
        return None
    result = earlier.result
    code, killed = result.get("exit_code"), result.get("status") == "running"
    if not killed and (code is None or code < 128 or code == ExitCode.INTERRUPTED):
        return None
    if pending := result.get(PENDING):  # that attempt did not train: the recovery is from the loss before it
        return Loss(**pending)
    step = max((result.get("steps") or {}).get("applied") or 0, (beat.step if beat else None) or 0)
    at_s = max(earlier.at_s, beat.at_s if beat else 0.0)
    error = {} if killed else result.get("error") or {}
    cause = error.get("message") or "ended without recording a status"
    return Loss(error.get("task") or str(CHIEF), cause, at_s, step)


def _trains_again(failure: _Failure, training: TrainingStatus) -> bool:
    if training.state == "starting" or training.step is None:
        return False
    if failure.attempt:  # a chief leaves the state 'starting' with its first step
        return True
    if failure.back is None:  # the worker serves again: the next change is the first progress after it
        failure.back = training
        return False
    return (training.step, training.advances) != (failure.back.step, failure.back.advances)
