"""Saves and restores the checkpoints of a program, when no step runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from psrun.checkpoint import manifest
from psrun.checkpoint.logical import LogicalCheckpoint, adapted
from psrun.checkpoint.manifest import Contents, Manifest, Position
from psrun.checkpoint.store import PREFIX, Store
from psrun.config import choices
from psrun.errors import CheckpointError, ConfigError, Problem
from psrun.program import inventory
from psrun.program.compiled_model import Program
from psrun.program.monitored import check_metric
from psrun.tf_internals import messages
from psrun.tf_internals.checkpoints import point_to
from psrun.tf_internals.tracing import unconverted


class Checkpoints:
    """The checkpoints of a program in a store. The optimizer must be built already.

    Args:
      keep: the configured retention.
      warn: prints warnings.

    Raises:
      ConfigError: the program has no metric `best_metric`.
    """

    def __init__(
        self, program: Program, store: Store, keep: choices.EpochCheckpoints, warn: Callable[[str], None]
    ) -> None:
        self.store = store
        self._keep = keep
        self._warn = warn
        self._optimizer = program.optimizer
        self._learning_rate = learning_rate(program)
        self._checkpoint = LogicalCheckpoint(program.network, program.optimizer)
        self._contents = contents(program, self._checkpoint.keys)
        self._config_sha256 = manifest.digest(program.config.raw)
        if keep.best_metric is not None:
            check_metric("checkpoint.best_metric", keep.best_metric, program)
        # Traced once, before the training. TensorFlow's managers trace for every checkpoint; each trace is sent to all
        # workers under Python's GIL: a hung worker would stop every thread of this process.
        self._write = unconverted(self._checkpoint.write).get_concrete_function(tf.TensorSpec([], tf.string))

    def save(self, step: int, position: Position) -> list[int]:
        """Writes a checkpoint named after `step`. Call after a join: while steps run it would be inconsistent.

        It becomes the latest one, and older ones are removed, when all of it is on disk.

        Returns:
          The steps of the existing checkpoints, the newest first.

        Raises:
          CheckpointError: the disk is full or the folder cannot be written to; earlier checkpoints remain complete.
          tf.errors.OpError: a task was lost.
        """
        store = self.store
        new_manifest = Manifest(
            step, position, self._contents, self._config_sha256, "", learning_rate=self._learning_rate
        )
        try:
            store.make_room(step)
            self._write(tf.constant(store.prefix(step)))
            store.complete(new_manifest)
        except (tf.errors.OpError, OSError) as error:
            if isinstance(error, tf.errors.OpError) and messages.task_lost(error):
                raise  # not an error of the disk
            store.discard(step)  # frees the disk space
            reason = messages.gist(str(error))
            raise CheckpointError(f"no checkpoint could be written at step {step}: {reason}") from error
        try:
            self._point_to(step, store.steps())
            self._point_to(step, store.prune(step, self._keep.max_to_keep))
        except (tf.errors.OpError, OSError) as error:
            self._warn(f"the checkpoint of step {step} is complete, but older ones could not be removed: {error}")
        return store.steps()

    def _point_to(self, newest: int, steps: list[int]) -> None:
        """Makes `newest` the latest checkpoint also for TensorFlow's tools."""
        names = [f"{PREFIX}-{step}" for step in (newest, *(step for step in steps if step != newest))]
        # Only names, so that the folder may be moved.
        point_to(str(self.store.folder.resolve()), names[0], names[::-1])

    def restore(self, store: Store) -> Manifest | None:
        """Restores the newest good checkpoint in `store`; None if there never was one.

        It reads all of a checkpoint before it assigns any variable, and skips a damaged one with a warning.

        Raises:
          CheckpointError: all checkpoints are damaged.
          ConfigError: the newest good checkpoint has another model or optimizer.
        """
        checkpoint = store.choose("latest", self._warn)
        if checkpoint is not None:
            path = store.prefix(checkpoint.step)
            checkpoint.contents.check(path, self._contents)
            try:
                self._checkpoint.restore(path, checkpoint.contents)
            except (tf.errors.NotFoundError, tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
                raise CheckpointError(
                    f"the chief can read {path}, but another task cannot ({error}); mount the same run folder in all "
                    "tasks"
                ) from error
            except (AssertionError, KeyError) as error:
                message = f"does not match the checkpoint {path}: {str(error).splitlines()[0]}"
                raise ConfigError([Problem("optimizer", message)]) from error
            if self._learning_rate not in (None, checkpoint.learning_rate):
                # Keras keeps it in a variable, which was just restored; the current configuration takes precedence.
                self._optimizer.learning_rate = self._learning_rate
        return checkpoint

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Records the metrics of a checkpoint; returns whether it is the best so far by `best_metric`.

        Raises:
          CheckpointError: the disk is full or the folder cannot be written to.
        """
        metric = self._keep.best_metric
        if metric is None or metric not in metrics or step not in self.store.steps():
            return False
        try:
            return self.store.compare(step, metric, metrics[metric], mode=self._keep.best_mode)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"the best checkpoint could not be recorded: {error}") from error


def learning_rate(program: Program) -> float | None:
    """The configured learning rate; None for a schedule, which has no variable, or for the optimizer's default."""
    configured = program.config.optimizer.options.get("learning_rate")
    return float(configured) if isinstance(configured, int | float) else None


def contents(program: Program, keys: Mapping[str, str]) -> Contents:
    """The content of checkpoints of the program, with its keys."""
    placed = [each for each in inventory.observe(program) if each.kind in ("model", "optimizer")]
    return Contents.of(type(program.optimizer).__name__, placed, keys, adapted(program.network))
