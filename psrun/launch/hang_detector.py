"""Whether a task hangs: judged by how long its heartbeat, or the progress of its training, has not changed.

No I/O and no clock: the observer passes its readings and the time of its monotonic clock. Only changes count, so that
the clocks of two machines need not agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from psrun.results.task_files import Heartbeat

HELD_UP_S = 2.0


@dataclass(frozen=True)
class TrainingStatus:
    """State of a training, as of its last heartbeat; see `Heartbeat`."""

    state: str = "starting"
    step: int | None = None
    slowest_step_s: float | None = None
    advances: int = 0

    @classmethod
    def of(cls, beat: Heartbeat | None) -> Self:
        return cls(beat.state, beat.step, beat.slowest_step_s, beat.advances) if beat else cls()


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
    """How long there has been no sign of life.

    Time between two looks that exceeds `held_up_s` does not count: the observer was held up, perhaps with the whole
    machine. Look often.
    """

    def __init__(self, now_s: float, *, held_up_s: float = HELD_UP_S) -> None:
        self._since_s = self._looked_s = now_s
        self._held_up_s = held_up_s
        self._reading: Any = None

    def reset(self, now_s: float) -> None:
        """There is a sign of life."""
        self._since_s = self._looked_s = now_s

    def seconds(self, now_s: float) -> float:
        """How long it has lasted."""
        gap_s, self._looked_s = now_s - self._looked_s, now_s
        if gap_s > self._held_up_s:
            self._since_s += gap_s
        return now_s - self._since_s

    def unchanged(self, reading: Any, now_s: float) -> float:
        """How long `reading` has been the same; each change is a sign of life."""
        if reading != self._reading:
            self._reading = reading
            self.reset(now_s)
        return self.seconds(now_s)


class HangDetector:
    """Judges one process of a task, from its start on.

    Attributes:
      silent_s: how long its heartbeat had not changed at the last look.
    """

    def __init__(self, limits: HangLimits, now_s: float, *, held_up_s: float = HELD_UP_S) -> None:
        self._limits = limits
        self._heartbeat = Silence(now_s, held_up_s=held_up_s)
        self._progress = Silence(now_s, held_up_s=held_up_s)
        self._came_up, self.silent_s = False, 0.0

    def heartbeat_fault(self, beat: Heartbeat | None, now_s: float) -> str | None:
        """Why the process counts as hung by its last heartbeat, None if there is none; returns None if it does not."""
        silent_s = self.silent_s = self._heartbeat.unchanged(beat and beat.at_s, now_s)
        if beat is not None:
            self._came_up = True
            return f"hangs: not heard of for {silent_s:.0f} s" if silent_s > self._limits.heartbeat_timeout_s else None
        if silent_s <= self._limits.start_timeout_s:
            return None
        action = "exit" if self._came_up else "come up"  # a process that is about to exit removes its heartbeat
        return f"did not {action} within {self._limits.start_timeout_s:.0f} s"

    def progress_fault(self, training: TrainingStatus, now_s: float) -> str | None:
        """Why the training counts as hung; None if it does not."""
        silent_s = self._progress.unchanged(training, now_s)
        if silent_s <= progress_limit_s(self._limits, training):
            return None
        return f"makes no progress: {training.state} at step {training.step or 0} for {silent_s:.0f} s"

    def may_wait_for(self, others: Iterable[HangDetector]) -> bool:
        """Whether the process may be silent because it waits for one of `others`, which is silent too.

        TensorFlow may hold Python's lock while it waits for an answer of another task.
        """
        limit_s = self._limits.heartbeat_timeout_s
        return self.silent_s <= 2 * limit_s and any(other.silent_s > limit_s / 2 for other in others)

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
