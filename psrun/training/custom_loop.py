"""The custom training loop: steps are scheduled on the workers and joined at the end of each epoch."""

from __future__ import annotations

from psrun.config.run_config import RunConfig
from psrun.program.compiled_model import Program
from psrun.training.loop import TrainingRun
from psrun.training.scheduler import Scheduler
from psrun.training.trainer import Trainer


def trainer(run: RunConfig) -> Trainer:
    """The trainer of a run; it accepts every configuration."""
    return Trainer(_train)


def _train(program: Program, session: TrainingRun) -> None:
    """Runs all epochs of the program's configuration. The step is the network's own `train_step`, as in Keras."""
    trainer = program.config.trainer
    steps = Scheduler(program, session)
    steps_done = session.start.steps
    for _ in range(session.start.epochs, trainer.num_epochs):
        if session.ends_early:
            break
        program.network.reset_metrics()
        session.epoch_begins()
        while steps_done < trainer.num_steps and not session.stop.requested.is_set():
            session.check()
            num_steps = steps.schedule(trainer.num_steps - steps_done)
            steps_done += num_steps
            if session.steps_scheduled(num_steps):
                steps.join()
                session.save()
        steps.join()
        session.steps_joined()
        steps_done = 0
        session.epoch_ends(steps.results())
