"""The custom training loop: steps are scheduled on the workers and joined at the end of each epoch."""

from __future__ import annotations

from psrun.config.run_config import RunConfig
from psrun.program.compiled_model import Program
from psrun.training.loop import Trainer, TrainingRun
from psrun.training.scheduler import Scheduler


def trainer(run: RunConfig) -> Trainer:
    """The trainer of a run; it accepts every configuration."""
    return Trainer(_train)


def _train(program: Program, run: TrainingRun) -> None:
    """Runs all epochs of the program's configuration. The step is the network's own `train_step`, as in Keras."""
    steps = Scheduler(program, run)
    for epoch in run.epochs(steps.join):
        for piece in epoch.pieces():
            piece.num_steps = steps.schedule(piece.max_steps)
            run.after_piece(piece)
        run.after_epoch(epoch, steps.results)
