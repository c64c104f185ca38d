"""Checkpoints of model, optimizer and position, taken when no step runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from psrun import manifest, placement
from psrun.errors import CheckpointError
from psrun.manifest import Manifest
from psrun.program import Program

_PREFIX = "ckpt"


@dataclass(frozen=True)
class Position:
    """How far a training is: whole epochs, and steps into the one after them."""

    epochs: int = 0
    steps: int = 0


class Checkpoints:
    """Keeps the newest `max_to_keep` checkpoints of a program in `folder`. The optimizer must be built already."""

    def __init__(self, program: Program, folder: Path, *, max_to_keep: int) -> None:
        self._folder, self._max_to_keep = folder, max_to_keep
        with tf.device("/CPU:0"):
            self._position = tf.Variable([0, 0], dtype=tf.int64, name="position")
        self._checkpoint = tf.train.Checkpoint(
            model=program.network, optimizer=program.optimizer, position=self._position
        )
        placed = [
            *placement.observed("model", program.network.variables),
            *placement.observed("optimizer", program.optimizer.variables()),
        ]
        self._manifest = Manifest.of(type(program.optimizer).__name__, placed)
        # Traced once, before the training. TensorFlow's own managers trace anew for every checkpoint; each trace is
        # told to all workers with Python's lock held: one that hangs would stop every thread of this process.
        self._write = tf.function(self._checkpoint.write).get_concrete_function(tf.TensorSpec([], tf.string))

    def save(self, step: int, position: Position) -> str:
        """Writes a checkpoint named after `step`. Call after a join: while steps run it would be torn.

        Raises:
          CheckpointError: the disk is full or the folder cannot be written to.
        """
        path = str(self._folder / f"{_PREFIX}-{step}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._position.assign([position.epochs, position.steps])
            self._write(tf.constant(path))
            manifest.write(path, self._manifest)
            others = [index.stem for index in _newest_first(self._folder) if index.stem != f"{_PREFIX}-{step}"]
            kept = [f"{_PREFIX}-{step}", *others[: self._max_to_keep - 1]]  # names only: the folder may be moved
            tf.compat.v1.train.update_checkpoint_state(str(self._folder.resolve()), kept[0], kept[::-1])
            for old in others[self._max_to_keep - 1 :]:
                manifest.path(str(self._folder / old)).unlink(missing_ok=True)
                tf.compat.v1.train.remove_checkpoint(str(self._folder / old))
        except tf.errors.UnavailableError:
            raise  # not the disk: a task was lost
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointError(f"no checkpoint could be written at step {step}: {error}") from error
        return path

    def restore(self, folder: Path, warn: Callable[[str], None]) -> tuple[str, Position] | None:
        """Restores the newest good checkpoint in `folder`: its path and position, or None where there is none at all.

        A damaged one is found before any variable is touched, and passed over with a warning.

        Raises:
          CheckpointError: there are checkpoints and none is good.
          ConfigError: the newest good one is of another model or optimizer.
        """
        found = _newest_first(folder)
        for index in found:
            path = str(index.with_suffix(""))
            damage = _damage(path)
            if damage:
                warn(f"{path} is damaged ({damage}); the one before is tried")
                continue
            held = manifest.read(path)
            if held:
                held.check(path, self._manifest)
            self._checkpoint.read(path).assert_consumed()
            epochs, steps = self._position.numpy()
            return path, Position(int(epochs), int(steps))
        if found:
            raise CheckpointError(f"there are {len(found)} checkpoints in {folder}, and none is good")
        return None


def _newest_first(folder: Path) -> list[Path]:
    """The index files of all checkpoints."""
    return sorted(folder.glob(f"{_PREFIX}-*.index"), key=_step, reverse=True)


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
