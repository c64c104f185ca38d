"""Checkpoints of model and optimizer, taken between epochs, when no step runs."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from psrun.errors import PsrunError
from psrun.program import Program


class CheckpointError(PsrunError):
    """A checkpoint could not be written."""


class Checkpoints:
    """Keeps the newest `max_to_keep` checkpoints of a program. The optimizer must be built already."""

    def __init__(self, program: Program, folder: Path, *, max_to_keep: int) -> None:
        checkpoint = tf.train.Checkpoint(model=program.network, optimizer=program.optimizer)
        self._manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=max_to_keep)

    def save(self, step: int) -> str:
        """Writes a checkpoint named after `step`. Call after a join: while steps run it would be torn.

        Raises:
          CheckpointError: the disk is full or the folder cannot be written to.
        """
        try:
            return self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointError(f"no checkpoint could be written at step {step}: {error}") from error
