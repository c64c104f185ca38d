"""The position at which a training resumes, also after a change of the epoch length or the batch size."""

from __future__ import annotations

import time
from dataclasses import replace

from psrun.checkpoint.manifest import Position
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.training.trainer import Trainer


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
    """`position` in terms of the current epoch length and batch size."""
    steps, order = built.config.trainer.num_steps, built.order
    if position.steps >= steps:
        position = replace(position, epochs=position.epochs + 1, steps=0)
    if order is None:
        return replace(position, batch=0, order=None)
    batch, left_out = order.taken_up(position.batch, position.order)
    into = batch % order.batches_per_pass
    together = steps == order.batches_per_pass and built.config.trainer.has_fixed_epochs
    if together and into != position.steps:  # epochs and passes begin together
        if into:
            left_out = order.num_examples - into * order.batch_size
            batch += order.batches_per_pass - into
        if position.steps:
            position = replace(position, epochs=position.epochs + 1, steps=0)
    if left_out:
        reporter.warn(f"the batch size or the epochs changed: skipping the last {left_out:,} examples of the pass")
    return replace(position, batch=batch, order=order.geometry)
