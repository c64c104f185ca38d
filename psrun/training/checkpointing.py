"""When a training saves checkpoints and what it records about them, and the position at which it
resumes.

The position is adapted where the epoch length or the batch size has changed since. The training pauses
for a copy of the values in memory; a thread writes the copy while steps run.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import tensorflow as tf
from rich.filesize import decimal

from psrun.checkpoint.checkpoints import Checkpoints
from psrun.checkpoint.storage import PREFIX, SET_ASIDE, Manifest, Position, Store
from psrun.config.choices import EpochCheckpoints
from psrun.data.source import Order
from psrun.errors import CheckpointError, PsrunError
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.training.loop import Trainer


class CheckpointSchedule:
    """Takes the checkpoints of one training, and keeps the list `checkpoints` in run.json up to date.

    One checkpoint at most is written behind the training: the next one waits for it.

    Args:
      when: as configured.
      folder: receives the list for run.json.
      machine_of: as in `lack_of_memory`; called before the first checkpoint.

    Attributes:
      last_step: of the last checkpoint taken or restored; None before.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        when: EpochCheckpoints,
        reporter: Reporter,
        folder: RunFolder,
        machine_of: Callable[[str], Machine],
    ) -> None:
        self._checkpoints = checkpoints
        self._when = when
        self._reporter = reporter
        self._folder = folder
        self._machine_of = machine_of
        self._thread = ThreadPoolExecutor(1, "psrun-checkpoint")
        self._writing: Future[None] | None = None
        self._copies: bool | None = None
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
        """Takes a checkpoint, unless this step has one; a thread writes it, if memory suffices for a copy.

        Raises:
          CheckpointError: this checkpoint, or the one before, could not be written.
          tf.errors.OpError: a task was lost.
        """
        if step == self.last_step:
            return
        paused_s = time.monotonic()
        self.wait()
        began_s = time.monotonic()
        copies = self._may_copy()
        write = self._checkpoints.take(step, position, copies=copies)
        self._last_s = time.monotonic()
        pause_s = self._last_s - paused_s if copies else None
        self._writing = self._thread.submit(self._write, write, step, began_s, pause_s)
        if not copies:
            self.wait()
            self._last_s = time.monotonic()
        self._last_scheduled = self._scheduled
        self.last_step = step

    def _may_copy(self) -> bool:
        """Whether the tasks have the memory for a copy. Decided once: TensorFlow keeps the memory of the first copy."""
        if self._copies is None:
            lack = lack_of_memory(self._checkpoints.held_bytes, self._machine_of)
            if lack is not None:
                self._reporter.warn(f"{lack}; the training pauses until each checkpoint is on disk")
            self._copies = lack is None
        return self._copies

    def _write(self, write: Callable[[], list[int]], step: int, began_s: float, pause_s: float | None) -> None:
        """Writes a checkpoint and reports it.

        Args:
          pause_s: how long the training has paused for it; None if it pauses until the end.
        """
        steps = write()
        seconds = time.monotonic() - began_s
        if pause_s is None:
            pause_s = seconds
        path = self._checkpoints.store.prefix(step)
        facts = {"seconds": round(seconds, 3), "pause_s": round(pause_s, 3)}
        self._reporter.emit("checkpoint", step=step, path=path, **facts)
        self._record(steps)

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written; does not wait. Raises as `save` does."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the last checkpoint is complete. Raises as `save` does."""
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Waits until the last checkpoint is complete, also of a training that has failed. Raises nothing."""
        with contextlib.suppress(tf.errors.OpError, PsrunError):  # the training has met the lost task, too
            try:
                self.wait()
            except CheckpointError as error:
                self._reporter.warn(str(error))
        self._thread.shutdown()

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keeps the checkpoint of `step`, if there is one, as the best if these metrics are the best.

        Raises as `save` does.
        """
        if self._when.best_metric in metrics:
            self.wait()
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


@dataclass(frozen=True)
class Machine:
    """Where a task is.

    Attributes:
      name: of the machine.
      free_bytes: of its memory; None if that is not known.
    """

    name: str
    free_bytes: int | None


def lack_of_memory(held: Mapping[str, int], machine_of: Callable[[str], Machine]) -> str | None:
    """Why tasks do not copy what they hold, in one line; None if they can. Copies take half of free memory at most.

    Args:
      held: bytes by task.
      machine_of: returns the machine of a task.
    """
    needed: Counter[str] = Counter()
    machines = []
    for task, num_bytes in held.items():
        machine = machine_of(task)
        needed[machine.name] += num_bytes
        machines.append(machine)
    for machine in machines:
        copy_bytes = needed[machine.name]
        text = f"a copy of the {decimal(copy_bytes)} that a checkpoint takes from {machine.name}"
        if machine.free_bytes is None:
            return f"{text} is not made, since the free memory there is not known"
        if copy_bytes > machine.free_bytes / 2:
            return f"{text} would need more than half of the free memory there, {decimal(machine.free_bytes)}"
    return None


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
    trainer = built.config.trainer
    order = built.data.order
    if order is None:
        position = _within_epoch(position, trainer.num_steps)
        return replace(position, batch=0, order=None, again=())
    position, num_skipped = _in_order(position, order)
    batches_per_step = built.gradients_per_update
    if trainer.has_fixed_epochs and trainer.num_steps * batches_per_step == order.batches_per_pass:
        position, num_behind = _within_pass(position, order, batches_per_step)
        num_skipped += num_behind
    else:
        position = _within_epoch(position, trainer.num_steps)
    if num_skipped:
        reporter.warn(f"the batch size or the epochs changed: skipping the last {num_skipped:,} examples of the pass")
    return position


def _in_order(position: Position, order: Order) -> tuple[Position, int]:
    """The position in the current order of examples, and the number of examples that it skips.

    Batches that are to be read again have the same numbers only in the same order.
    """
    batch, num_skipped = order.taken_up(position.batch, position.order)
    again = position.again
    if batch != position.batch:
        num_skipped += len(again) * order.batch_size
        again = ()
    return replace(position, batch=batch, order=order.geometry, again=again), num_skipped


def _within_pass(position: Position, order: Order, batches_per_step: int) -> tuple[Position, int]:
    """The position where each epoch is one pass, and the number of examples that it skips.

    If the steps of the epoch are not the batches of the pass so far, the next epoch and the next pass begin together.
    """
    num_applied = position.batch % order.batches_per_pass - len(position.again)
    was_together = num_applied == position.steps * position.batches_per_step
    if was_together and num_applied % batches_per_step == 0:
        return replace(position, steps=num_applied // batches_per_step), 0
    position = _within_epoch(position, order.batches_per_pass // batches_per_step)
    if num_applied == position.steps * batches_per_step:
        return position, 0
    return _next_pass(position, order)


def _next_pass(position: Position, order: Order) -> tuple[Position, int]:
    """The begin of the next epoch and the next pass, unless they begin here; and the number of skipped examples."""
    num_skipped = 0
    batch = position.batch
    num_begun = batch % order.batches_per_pass
    if num_begun:
        num_skipped = order.num_examples - num_begun * order.batch_size
        batch += order.batches_per_pass - num_begun
    epochs = position.epochs
    if position.steps:
        epochs += 1
    return replace(position, epochs=epochs, steps=0, batch=batch, again=()), num_skipped


def _within_epoch(position: Position, num_steps: int) -> Position:
    """The position, or the next epoch if epochs of `num_steps` steps are too short for it."""
    if position.steps < num_steps:
        return position
    return replace(position, epochs=position.epochs + 1, steps=0)
