"""The interface between the coordinator and a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psrun.checkpoint.manifest import Position
from psrun.program.compiled_model import Program
from psrun.training.loop import TrainingRun


def _nothing(program: Program) -> Position | None:
    return None


@dataclass(frozen=True)
class Trainer:
    """One way to train a program.

    Attributes:
      train: trains a program from the start position of its session to the end.
      restore: restores the program's variables from a backup that the trainer itself took; returns its position, or
        None without a backup. Called before the session is created, and only if psrun takes no checkpoints.
    """

    train: Callable[[Program, TrainingRun], None]
    restore: Callable[[Program], Position | None] = _nothing
