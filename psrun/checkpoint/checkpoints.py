"""Writing and restoring the checkpoints of a program, when no step runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import tensorflow as tf

from psrun.checkpoint import manifest
from psrun.checkpoint.manifest import Contents, Manifest, Position
from psrun.checkpoint.store import PREFIX, Store
from psrun.cluster import placement
from psrun.config import choices
from psrun.errors import CheckpointError, ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.program.monitored import check_metric
from psrun.tf_internals import messages


class Checkpoints:
    """Keeps checkpoints of a program in a store. The optimizer must be built already.

    Args:
      keep: which ones.
      warn: prints warnings.

    Raises:
      ConfigError: the metric of the best one is none that the program has.
    """

    def __init__(
        self, program: Program, store: Store, keep: choices.EpochCheckpoints, warn: Callable[[str], None]
    ) -> None:
        self.store, self._keep, self._warn = store, keep, warn
        self._optimizer, self._learning_rate = program.optimizer, learning_rate(program)
        self._checkpoint = tf.train.Checkpoint(model=program.network, optimizer=program.optimizer)
        self._contents = contents(program)
        self._config_sha256 = manifest.digest(program.config.raw)
        if keep.best_metric is not None:
            check_metric("checkpoint.best_metric", keep.best_metric, program)
        # Traced once, before the training. TensorFlow's own managers trace anew for every checkpoint; each trace is
        # sent to all workers with Python's lock held: a hung worker would stop every thread of this process.
        self._write = tf.function(self._checkpoint.write).get_concrete_function(tf.TensorSpec([], tf.string))

    def save(self, step: int, position: Position) -> list[int]:
        """Writes a checkpoint named after `step`. Call after a join: while steps run it would be torn.

        Only when all of it is on disk is it the latest one, and are older ones removed.

        Returns:
          The steps of the checkpoints that there are now, the newest first.

        Raises:
          CheckpointError: the disk is full or the folder cannot be written to; what was complete before still is.
          tf.errors.OpError: a task was lost.
        """
        store = self.store
        held = Manifest(step, position, self._contents, self._config_sha256, "", learning_rate=self._learning_rate)
        try:
            store.make_room(step)
            self._write(tf.constant(store.prefix(step)))
            store.complete(held)
        except (tf.errors.OpError, OSError) as error:
            if isinstance(error, tf.errors.OpError) and messages.task_lost(error):
                raise  # not the disk
            with contextlib.suppress(OSError):
                store.make_room(step)  # a full disk is not left fuller
            raise CheckpointError(f"no checkpoint could be written at step {step}: {error}") from error
        try:
            self._point_to(step, store.steps())
            self._point_to(step, store.prune(step, self._keep.max_to_keep))
        except (tf.errors.OpError, OSError) as error:
            self._warn(f"the checkpoint of step {step} is complete, but older ones could not be removed: {error}")
        return store.steps()

    def _point_to(self, newest: int, steps: list[int]) -> None:
        """Makes `newest` the latest for TensorFlow's own tools too."""
        names = [f"{PREFIX}-{step}" for step in (newest, *(step for step in steps if step != newest))]
        # Names only: the folder may be moved.
        tf.compat.v1.train.update_checkpoint_state(str(self.store.folder.resolve()), names[0], names[::-1])

    def restore(self, store: Store) -> Manifest | None:
        """Restores the newest good checkpoint in `store`; None where there never was any.

        All of it is read before any variable is touched; a damaged one is passed over with a warning.

        Raises:
          CheckpointError: there are checkpoints and none is good.
          ConfigError: the newest good one is of another model or optimizer.
        """
        found = store.choose("latest", self._warn)
        if found is not None:
            path = store.prefix(found.step)
            found.contents.check(path, self._contents)
            try:
                self._checkpoint.read(path).assert_consumed()
            except (tf.errors.NotFoundError, tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
                raise CheckpointError(
                    f"the chief can read {path}, but another task cannot ({error}); mount the same run folder in all "
                    "tasks"
                ) from error
            except AssertionError as error:
                message = f"does not match the checkpoint {path}: {str(error).splitlines()[0]}"
                raise ConfigError([Problem("optimizer", message)]) from error
            if self._learning_rate not in (None, found.learning_rate):
                # Keras keeps it in a variable, which was just restored; the current configuration takes precedence.
                self._optimizer.learning_rate = self._learning_rate
        return found

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
    """As configured; None where it is a schedule, which has no variable, or left to the optimizer."""
    configured = program.config.optimizer.options.get("learning_rate")
    return float(configured) if isinstance(configured, int | float) else None


def contents(program: Program) -> Contents:
    """What checkpoints of the program hold."""
    placed = [
        *placement.observed("model", program.network.variables),
        *placement.observed("optimizer", program.optimizer.variables()),
    ]
    return Contents.of(type(program.optimizer).__name__, placed)
