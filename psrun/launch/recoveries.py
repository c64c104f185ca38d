"""The tasks that a run has lost, and how it recovered."""

from __future__ import annotations

import time
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
    """A task that was lost, until the first step after it has been replaced.

    Attributes:
      step: that had been reached.
      attempt: whether the training had to start again, rather than go on without the task.
      before_s: seconds since the failure when it was recorded here.
      restored: the step from which it goes on; None while that is not known.
      back: what the training showed when the task was there again.
    """

    task: Task
    cause: str
    at_s: float  # time.time
    step: int
    attempt: bool
    before_s: float = 0.0
    restored: int | None = None
    back: TrainingStatus | None = None


class Recoveries:
    """From a failure to the first step after it.

    Attributes:
      rows: what run.json says of failures that are over.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._open: list[_Failure] = []
        self.rows: list[dict[str, Any]] = []

    def failed(self, task: Task, cause: str, *, step: int, attempt: bool, before_s: float = 0.0) -> None:
        """A task was lost; one that was lost before it was well again counts once.

        Args:
          before_s: how long ago that was, in seconds.
        """
        self._open = [failure for failure in self._open if failure.task != task]
        self._open.append(_Failure(task, cause, time.time(), step, attempt, before_s))

    def restored(self, step: int) -> None:
        """A new chief goes on from the checkpoint of `step`."""
        for failure in self._open:
            failure.restored = step if failure.attempt else failure.restored

    def look(self, training: TrainingStatus, is_up: Callable[[Task], bool]) -> None:
        """Finds the failures that are over and reports them."""
        for failure in list(self._open):
            if is_up(failure.task) and (failure.task.job == "evaluator" or _trains_again(failure, training)):
                self._open.remove(failure)
                self._recovered(failure, training.step or 0)

    def end(self, step: int) -> None:
        """The training has reached its end, at `step`: attempts that were lost before it are recovered."""
        for failure in [failure for failure in self._open if failure.attempt]:
            self._open.remove(failure)
            self._recovered(failure, step)

    def count_repeated(self, steps: int) -> None:
        """Steps that a lost worker had applied before they were run again are seen at the next join."""
        workers = [found for found in self.rows if found["task"].startswith("worker")]
        if workers:
            others = sum(found["steps_repeated"] for found in workers[:-1])
            workers[-1]["steps_repeated"] = max(workers[-1]["steps_repeated"], steps - others)

    def _recovered(self, failure: _Failure, step: int) -> None:
        lost = max(0, failure.step - (failure.restored or 0)) if failure.attempt else 0
        found = {
            "task": str(failure.task),
            "cause": failure.cause,
            "at_s": round(failure.at_s - self._reporter.started_s, 3),
            "seconds": round(failure.before_s + time.time() - failure.at_s, 3),
            "steps_lost": lost,
            "steps_repeated": lost,
        }
        self.rows.append(found)
        self._reporter.emit("recovery", step=step, **found)


@dataclass(frozen=True)
class Loss:
    """What ended an attempt, kept in run.json until a later one trains.

    Attributes:
      task: as it prints.
      at_s: when, as of `time.time`.
      step: that had been reached.
    """

    task: str
    cause: str
    at_s: float
    step: int


def earlier_loss(earlier: Earlier | None, beat: Heartbeat | None) -> Loss | None:
    """What ended the attempt before this one; None where it ended for good, or a person ended it.

    Args:
      beat: the last heartbeat of its chief, which is left behind where it had no time to remove it.
    """
    if earlier is None:
        return None
    result = earlier.result
    code, killed = result.get("exit_code"), result.get("status") == "running"
    if not killed and (code is None or code < 128 or code == ExitCode.INTERRUPTED):
        return None
    if kept := result.get(PENDING):  # that attempt trained nothing: what was lost before it is what is recovered from
        return Loss(**kept)
    step = max((result.get("steps") or {}).get("applied") or 0, (beat.step if beat else None) or 0)
    at_s = max(earlier.at_s, beat.at_s if beat else 0.0)
    error = {} if killed else result.get("error") or {}
    cause = error.get("message") or "ended without recording a status"
    return Loss(error.get("task") or str(CHIEF), cause, at_s, step)


def _trains_again(failure: _Failure, training: TrainingStatus) -> bool:
    if training.state == "starting" or training.step is None:
        return False
    if failure.attempt:  # a chief's first sign in another state comes with the first step
        return True
    if failure.back is None:  # the worker serves again: what is done next is the first after it
        failure.back = training
        return False
    return (training.step, training.advances) != (failure.back.step, failure.back.advances)
