"""Checkpoints of model, optimizer and position, taken when no step runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from psrun.errors import CheckpointError
from psrun.program import Program

_PREFIX = "ckpt"


@dataclass(frozen=True)
class Position:
    """How far a training is: whole epochs, and steps into the one after them."""

    epochs: int = 0
    steps: int = 0


class Checkpoints:
    """Keeps the newest `max_to_keep` checkpoints of a program. The optimizer must be built already."""

    def __init__(self, program: Program, folder: Path, *, max_to_keep: int) -> None:
        self._folder = folder
        with tf.device("/CPU:0"):
            self._position = tf.Variable([0, 0], dtype=tf.int64, name="position")
        self._checkpoint = tf.train.Checkpoint(
            model=program.network, optimizer=program.optimizer, position=self._position
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(folder), max_to_keep=max_to_keep, checkpoint_name=_PREFIX
        )

    def save(self, step: int, position: Position) -> str:
        """Writes a checkpoint named after `step`. Call after a join: while steps run it would be torn.

        Raises:
          CheckpointError: the disk is full or the folder cannot be written to.
        """
        try:
            self._position.assign([position.epochs, position.steps])
            return self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointError(f"no checkpoint could be written at step {step}: {error}") from error

    def restore(self, warn: Callable[[str], None]) -> tuple[str, Position] | None:
        """Restores the newest good checkpoint: its path and position, or None where there is none at all.

        A damaged one is found before any variable is touched, and passed over with a warning.

        Raises:
          CheckpointError: there are checkpoints and none is good.
        """
        found = sorted(self._folder.glob(f"{_PREFIX}-*.index"), key=_step, reverse=True)
        for index in found:
            path = str(index.with_suffix(""))
            damage = _damage(path)
            if damage:
                warn(f"{path} is damaged ({damage}); the one before is tried")
                continue
            self._checkpoint.restore(path).assert_consumed()
            epochs, steps = self._position.numpy()
            return path, Position(int(epochs), int(steps))
        if found:
            raise CheckpointError(f"there are {len(found)} checkpoints in {self._folder}, and none is good")
        return None


def _step(index: Path) -> int:
    match = re.fullmatch(rf"{_PREFIX}-(\d+)", index.stem)
    return int(match[1]) if match else -1


def _damage(path: str) -> str | None:
    """What is wrong with a checkpoint, found by reading all of it: restoring half of one cannot be undone."""
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, OSError, IndexError, ValueError) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None
