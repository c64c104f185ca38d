"""Lost tasks: whether a task hangs, whether and when it restarts, and when the training has recovered.

No clock but the reporter's: the observer passes its readings and the time of its monotonic clock. Only changes of a
heartbeat count, so that the clocks of two machines need not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from psrun.config import choices
from psrun.config.topology import CHIEF, Task
from psrun.errors import BudgetSpentError, ExitCode
from psrun.results.events import PENDING_LOSS, Reporter
from psrun.results.run_folder import Earlier
from psrun.results.task_files import Heartbeat

HELD_UP_S = 2.0


@dataclass(frozen=True)
class TrainingStatus:
    """State of a training at its last heartbeat; see `Heartbeat`."""

    state: str = "starting"
    step: int | None = None
    slowest_step_s: float | None = None
    advances: int = 0

    @classmethod
    def of(cls, beat: Heartbeat | None) -> TrainingStatus:
        if beat is None:
            return cls()
        return cls(beat.state, beat.step, beat.slowest_step_s, beat.advances)


class HangLimits(Protocol):
    """Time limits; see `choices.Restart`."""

    @property
    def heartbeat_timeout_s(self) -> float: ...

    @property
    def start_timeout_s(self) -> float: ...

    @property
    def progress_timeout_s(self) -> float: ...

    @property
    def progress_factor(self) -> float: ...


class Silence:
    """How long something has given no sign of life. It hangs once that exceeds a limit: all observers judge here.

    Time between two looks that exceeds `held_up_s` does not count: the observer was held up, perhaps with the whole
    machine. Look often.

    Attributes:
      lasted_s: how long it had lasted at the last look.
    """

    def __init__(self, now_s: float, *, held_up_s: float = HELD_UP_S) -> None:
        self.lasted_s = 0.0
        self._since_s = now_s
        self._looked_s = now_s
        self._held_up_s = held_up_s
        self._reading: Any = None

    def reset(self, now_s: float) -> None:
        """There is a sign of life."""
        self._since_s = now_s
        self._looked_s = now_s

    def hear(self, reading: Any, now_s: float) -> None:
        """What was read now; each change is a sign of life."""
        if reading != self._reading:
            self._reading = reading
            self.reset(now_s)

    def exceeds(self, limit_s: float, now_s: float) -> bool:
        """Looks: whether it has lasted longer than `limit_s`."""
        gap_s = now_s - self._looked_s
        if gap_s > self._held_up_s:
            self._since_s += gap_s
        self._looked_s = now_s
        self.lasted_s = now_s - self._since_s
        return self.lasted_s > limit_s


def not_heard_of(silence: Silence) -> str:
    """The cause of a loss: a process that hangs."""
    return f"hangs: not heard of for {silence.lasted_s:.0f} s"


class HangDetector:
    """Judges one process of a task, from its start on: its heartbeat, and the progress of its training."""

    def __init__(self, limits: HangLimits, now_s: float, *, held_up_s: float = HELD_UP_S) -> None:
        self._limits = limits
        self._heartbeat = Silence(now_s, held_up_s=held_up_s)
        self._progress = Silence(now_s, held_up_s=held_up_s)
        self._came_up = False

    def heartbeat_fault(self, beat: Heartbeat | None, now_s: float) -> str | None:
        """Why the process counts as hung by its last heartbeat, None if there is none; returns None if it does not."""
        self._heartbeat.hear(beat and beat.at_s, now_s)
        if beat is not None:
            self._came_up = True
            hangs = self._heartbeat.exceeds(self._limits.heartbeat_timeout_s, now_s)
            return not_heard_of(self._heartbeat) if hangs else None
        if not self._heartbeat.exceeds(self._limits.start_timeout_s, now_s):
            return None
        action = "exit" if self._came_up else "come up"  # a process that is about to exit removes its heartbeat
        return f"did not {action} within {self._limits.start_timeout_s:.0f} s"

    def progress_fault(self, training: TrainingStatus, now_s: float) -> str | None:
        """Why the training counts as hung; None if it does not."""
        self._progress.hear(training, now_s)
        if not self._progress.exceeds(progress_limit_s(self._limits, training), now_s):
            return None
        lasted_s = self._progress.lasted_s
        return f"makes no progress: {training.state} at step {training.step or 0} for {lasted_s:.0f} s"

    def may_wait_for(self, others: Iterable[HangDetector]) -> bool:
        """Whether the process may be silent because it waits for one of `others`, which is silent too.

        TensorFlow may hold Python's lock while it waits for an answer of another task.
        """
        limit_s = self._limits.heartbeat_timeout_s
        if self._heartbeat.lasted_s > 2 * limit_s:
            return False
        return any(other._heartbeat.lasted_s > limit_s / 2 for other in others)

    def waited(self, now_s: float) -> None:
        """The wait for a heartbeat begins again: a task that the process may have waited for has ended."""
        self._heartbeat.reset(now_s)

    def progressed(self, now_s: float) -> None:
        """The wait for progress begins again: the cluster has changed."""
        self._progress.reset(now_s)


def progress_limit_s(limits: HangLimits, training: TrainingStatus) -> float:
    """The longest time without progress that is not a hang."""
    limit_s = max(limits.progress_timeout_s, limits.progress_factor * (training.slowest_step_s or 0.0))
    return limit_s if training.state == "training" else max(limit_s, limits.start_timeout_s)


@dataclass(frozen=True)
class RestartPolicy:
    """Limits the number of restarts, and delays the restarts of a task that fails repeatedly.

    Attributes:
      budget: total number of restarts.
      first_delay_s: delay before the second restart of a task; the first is immediate. Doubles with each restart.
      longest_delay_s: upper limit of the delay.
    """

    budget: int
    first_delay_s: float
    longest_delay_s: float

    @classmethod
    def of(cls, limits: choices.RestartLimits) -> RestartPolicy:
        return cls(limits.budget, limits.backoff_s, limits.max_backoff_s)

    def allows(self, num_restarts: int) -> bool:
        """Whether one more restart is allowed after `num_restarts`."""
        return num_restarts < self.budget

    def due_s(self, num_restarts: int, now_s: float) -> float:
        """The time at which a task that was restarted `num_restarts` times, and is lost now, is to start."""
        if num_restarts == 0:
            return now_s
        doublings = min(num_restarts - 1, 60)  # beyond that, a float would overflow
        return now_s + min(self.first_delay_s * 2**doublings, self.longest_delay_s)

    def exhausted(self, task: Task, cause: str) -> BudgetSpentError:
        """The error for a loss that the budget does not allow to recover from."""
        message = f"{task} {cause}; all {self.budget} restarts (cluster.restart.budget) are spent"
        return BudgetSpentError(message, task=str(task))


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
      at_s: time (`time.time`).
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
    if earlier is None or _ended_for_good(earlier.result):
        return None
    result = earlier.result
    if pending := result.get(PENDING_LOSS):  # that attempt did not train: the recovery is from the loss before it
        return Loss(**pending)
    step = (result.get("steps") or {}).get("applied") or 0
    at_s = earlier.at_s
    if beat is not None:
        step = max(step, beat.step or 0)
        at_s = max(at_s, beat.at_s)
    error: Mapping[str, Any] = {}
    if not _was_killed(result):  # a killed one has recorded none
        error = result.get("error") or {}
    cause = error.get("message") or "ended without recording a status"
    return Loss(error.get("task") or str(CHIEF), cause, at_s, step)


def _was_killed(result: Mapping[str, Any]) -> bool:
    return result.get("status") == "running"


def _ended_for_good(result: Mapping[str, Any]) -> bool:
    """Whether an attempt has ended with a code that asks for no restart, or a user has interrupted it."""
    if _was_killed(result):
        return False
    code = result.get("exit_code")
    return code is None or code < 128 or code == ExitCode.INTERRUPTED


def _trains_again(failure: _Failure, training: TrainingStatus) -> bool:
    if training.state == "starting" or training.step is None:
        return False
    if failure.attempt:  # a chief leaves the state 'starting' with its first step
        return True
    if failure.back is None:  # the worker serves again: the next change is the first progress after it
        failure.back = training
        return False
    return (training.step, training.advances) != (failure.back.step, failure.back.advances)
