"""Whether and when a lost task is restarted. No I/O and no clock: the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.config import choices
from psrun.config.topology import Task
from psrun.errors import BudgetSpentError


@dataclass(frozen=True)
class RestartPolicy:
    """Limits the number of restarts, and delays those of a task that fails repeatedly.

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
