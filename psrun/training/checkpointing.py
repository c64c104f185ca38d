"""When a training saves checkpoints and what it records about them, and the position at which it
resumes.

The position is adapted where the epoch length or the batch size has changed since.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from psrun.checkpoint.checkpoints import Checkpoints
from psrun.checkpoint.storage import PREFIX, SET_ASIDE, Manifest, Position, Store
from psrun.config.choices import EpochCheckpoints
from psrun.errors import CheckpointError
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.training.loop import Trainer


class CheckpointSchedule:
    """Takes the checkpoints of one training, and keeps the list `checkpoints` in run.json up to date.

    Args:
      when: as configured.
      folder: receives the list for run.json.

    Attributes:
      last_step: of the last checkpoint taken or restored; None before.
    """

    def __init__(self, checkpoints: Checkpoints, when: EpochCheckpoints, reporter: Reporter, folder: RunFolder) -> None:
        self._checkpoints = checkpoints
        self._when = when
        self._reporter = reporter
        self._folder = folder
        self._last_s = time.monotonic()
        self._scheduled = 0
        self._last_scheduled = 0
        self.last_step: int | None = None

    def restore(self) -> Manifest | None:
        """Restores the newest good checkpoint of the run; returns None if the run never took one.

        Raises:
          CheckpointError: all checkpoints are damaged, or recorded checkpoints are missing.
          ConfigError: the checkpoint has another model or optimizer.
        """
        root = self._folder.root
        began_s = time.monotonic()
        store = Store(root.checkpoints)
        checkpoint = self._checkpoints.restore(store)
        if checkpoint is None:
            recorded = root.stored().get("checkpoints")
            if recorded:
                raise CheckpointError(
                    f"run.json lists {len(recorded)} checkpoints, but none exist in {store.folder}; to start from "
                    "scratch, choose another folder"
                )
            return None
        self.last_step = checkpoint.step
        if root is self._folder:
            damaged = store.set_aside()
            self._record(store.steps(), damaged=damaged)
        self._reporter.emit(
            "restored",
            step=checkpoint.step,
            path=store.prefix(checkpoint.step),
            epochs=checkpoint.position.epochs,
            steps=checkpoint.position.steps,
            seconds=round(time.monotonic() - began_s, 3),
        )
        return checkpoint

    def due(self, scheduled: int) -> bool:
        """Whether a checkpoint is due within an epoch, after `scheduled` steps were scheduled."""
        self._scheduled = scheduled
        when = self._when
        if when.every_steps is not None and scheduled - self._last_scheduled >= when.every_steps:
            return True
        return when.every_s is not None and time.monotonic() - self._last_s >= when.every_s

    def due_after(self, epoch: int, *, last: bool) -> bool:
        """Whether a checkpoint is due after `epoch` (from 1)."""
        every = self._when.every_epochs
        return last or (every is not None and epoch % every == 0)

    def save(self, step: int, position: Position) -> None:
        """Takes a checkpoint, unless this step has one.

        Raises:
          CheckpointError: the checkpoint could not be written.
        """
        if step == self.last_step:
            return
        began_s = time.monotonic()
        steps = self._checkpoints.save(step, position)
        self._last_s = time.monotonic()
        self._last_scheduled = self._scheduled
        self.last_step = step
        path = self._checkpoints.store.prefix(step)
        self._reporter.emit("checkpoint", step=step, path=path, seconds=round(self._last_s - began_s, 3))
        self._record(steps)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keeps the checkpoint of `step`, if there is one, as the best if these metrics are the best."""
        if self._checkpoints.evaluated(step, metrics):
            self._folder.emit("best_checkpoint", best_checkpoint=self._checkpoints.store.best())

    def _record(self, steps: list[int], *, damaged: Sequence[int] = ()) -> None:
        """Records what has changed since the last record: checkpoints that are new, removed or damaged.

        Args:
          steps: of all existing checkpoints.
        """
        store = self._checkpoints.store
        aside = store.folder / SET_ASIDE
        bad = [{"path": str(aside / f"{PREFIX}-{step}"), "step": step, "good": False} for step in damaged]
        good = [{"path": store.prefix(step), "step": step, "good": True} for step in steps]
        recorded = [row for row in self._folder.stored().get("checkpoints", []) if row["good"]]
        added = [row for row in good if row not in recorded]
        removed = [row["step"] for row in recorded if row not in good]
        self._folder.emit("checkpoints", good=added, damaged=bad, removed=removed)


def position_of_backup(built: Program, trainer: Trainer, reporter: Reporter) -> Position | None:
    """The position of a backup that Keras took; None if there is none."""
    began_s = time.monotonic()
    position = trainer.restore(built)
    if position is not None:
        seconds = round(time.monotonic() - began_s, 3)
        reporter.emit("restored", step=position.scheduled, path="trainer.callbacks: BackupAndRestore",
                      epochs=position.epochs, steps=position.steps, seconds=seconds)  # fmt: skip
    return position


def adapted_position(built: Program, position: Position, reporter: Reporter) -> Position:
    """`position` in terms of the current epoch length and batch size, and of the batches of a step."""
    steps = built.config.trainer.num_steps
    order = built.data.order
    batches = built.gradients_per_update
    if order is None:
        return replace(_within(steps, position), batch=0, order=None, again=())
    batch, left_out = order.taken_up(position.batch, position.order)
    again = position.again if batch == position.batch else ()
    left_out += (len(position.again) - len(again)) * order.batch_size
    into = batch % order.batches_per_pass
    together = steps * batches == order.batches_per_pass and built.config.trainer.has_fixed_epochs
    done = into - len(again)
    fits = done == position.steps * position.batches_per_step and done % batches == 0
    position = replace(position, steps=done // batches) if together and fits else _within(steps, position)
    if together and into != position.steps * batches + len(again):  # epochs and passes begin together
        again = ()
        if into:
            left_out = order.num_examples - into * order.batch_size
            batch += order.batches_per_pass - into
        if position.steps:
            position = replace(position, epochs=position.epochs + 1, steps=0)
    if left_out:
        reporter.warn(f"the batch size or the epochs changed: skipping the last {left_out:,} examples of the pass")
    return replace(position, batch=batch, order=order.geometry, again=again)


def _within(steps: int, position: Position) -> Position:
    """The position, or the next epoch if epochs of `steps` steps are too short for it."""
    return position if position.steps < steps else replace(position, epochs=position.epochs + 1, steps=0)
