"""The position at which a training resumes, also after a change of the epoch length or the batch size."""

from __future__ import annotations

import time
from dataclasses import replace

from psrun.checkpoint.manifest import Position
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.training.loop import Trainer


def restored_by_trainer(built: Program, trainer: Trainer, reporter: Reporter) -> Position | None:
    """The position of a backup that Keras took; None if there is none."""
    began_s = time.monotonic()
    position = trainer.restore(built)
    if position is not None:
        seconds = round(time.monotonic() - began_s, 3)
        reporter.emit("restored", step=position.scheduled, path="trainer.callbacks: BackupAndRestore",
                      epochs=position.epochs, steps=position.steps, seconds=seconds)  # fmt: skip
    return position


def taken_up(built: Program, position: Position, reporter: Reporter) -> Position:
    """`position` in terms of the current epoch length and batch size, and of the batches of a step."""
    steps = built.config.trainer.num_steps
    order = built.order
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
