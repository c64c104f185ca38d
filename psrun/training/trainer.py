"""What the coordinator asks of a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psrun.checkpoint.manifest import Position
from psrun.program.compiled_model import Program
from psrun.training.session import Session


def _nothing(program: Program) -> Position | None:
    return None


@dataclass(frozen=True)
class Trainer:
    """One way to train a program.

    Attributes:
      train: trains a program from where its session starts to the end.
      restore: gives the program's variables the values that the trainer itself backed up; returns where the training
        then is, or None where there is no backup. Called before the session is made, and only where psrun takes no
        checkpoints.
    """

    train: Callable[[Program, Session], None]
    restore: Callable[[Program], Position | None] = _nothing
