"""When tasks of a virtual cluster are lost, and what lost parameter servers cost a training."""

from __future__ import annotations

import random
from dataclasses import dataclass

from psrun.errors import TrainingError

_MOST_SETBACKS = 1000  # returns to the same checkpoint


class Losses:
    """When tasks are lost: each at a constant rate, also just after it was lost the last time.

    Args:
      mean_s: the mean time between two losses of a task.
      back_s: seconds until a lost task is back.
    """

    def __init__(self, mean_s: float, back_s: float, seed: str) -> None:
        self.back_s = back_s
        self._mean_s = mean_s
        self._random = random.Random(seed)

    def next_s(self, num_tasks: int = 1) -> float:
        """Seconds until the next loss of one of some tasks."""
        return self._random.expovariate(num_tasks / self._mean_s)


@dataclass(frozen=True)
class Saves:
    """When checkpoints are taken, as `psrun.training.checkpointing.CheckpointSchedule` takes them.

    Attributes:
      every_steps: so many steps after the last one.
      in_epochs: after multiples of the steps of some epochs.
    """

    every_steps: int | None = None
    in_epochs: int | None = None

    def is_due(self, num_steps: int, saved: int) -> bool:
        """Whether a checkpoint is due after some steps, if the last one has the steps `saved`."""
        if self.every_steps is not None and num_steps - saved >= self.every_steps:
            return True
        return self.in_epochs is not None and num_steps % self.in_epochs == 0


class ServerLosses:
    """When parameter servers are lost, and how much time that costs a training.

    The training goes back to its newest checkpoint, and does what followed it once more, which takes as long; another
    loss may come meanwhile. So weights are what they would be without the loss.

    Args:
      num_servers: each of which is lost at the rate of `losses`.
      saves: when checkpoints are taken.
      num_steps: steps before the beginning.

    Attributes:
      num_lost: how often a server was lost.
      lost_s: virtual seconds that this has cost.
    """

    def __init__(self, num_servers: int, losses: Losses, saves: Saves, num_steps: int = 0) -> None:
        self.num_lost = 0
        self.lost_s = 0.0
        self._num_servers = num_servers
        self._losses = losses
        self._saves = saves
        self._num_steps = num_steps
        self._num_saved = num_steps
        self._saved_s = 0.0  # without what losses cost, as all times here
        self._next_s = losses.next_s(num_servers)

    def advance(self, now_s: float, num_steps: int) -> None:
        """Loses the servers that are lost up to a time.

        Args:
          now_s: the time without losses.
          num_steps: steps that the training has done since the last call.

        Raises:
          TrainingError: servers are lost again and again before the training reaches its next checkpoint.
        """
        while self._next_s < now_s:
            self._go_back()
        self._num_steps += num_steps
        if self._saves.is_due(self._num_steps, self._num_saved):
            self._num_saved = self._num_steps
            self._saved_s = now_s

    def _go_back(self) -> None:
        since_s = self._next_s - self._saved_s
        for _ in range(_MOST_SETBACKS):
            self.num_lost += 1
            until_s = self._losses.next_s(self._num_servers)
            self.lost_s += self._losses.back_s + min(since_s, until_s)
            if until_s > since_s:
                self._next_s = self._saved_s + until_s
                return
        raise TrainingError(
            f"parameter servers were lost {_MOST_SETBACKS} times before a virtual second of the training came that is "
            f"{since_s:.4g} s behind its newest checkpoint; choose a larger cluster.ps_mtbf_s, or more checkpoints "
            "(checkpoint.every_steps)"
        )
