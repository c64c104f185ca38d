"""The custom training loop: steps are scheduled on the workers and joined at the end of each epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.config import RunConfig
from psrun.program import Program
from psrun.training.feeding import Stream
from psrun.training.packing import Packing, packed
from psrun.training.session import Session
from psrun.training.stages import Unmeasured


def trainer(run: RunConfig) -> Callable[[Program, Session], None]:
    """The function that trains a program; nothing of `run` can be refused here."""
    return _train


def _train(program: Program, session: Session) -> None:
    """Runs all epochs of the program's configuration. The step is the network's own `train_step`, as in Keras."""
    trainer = program.config.trainer
    schedule, join = _scheduler(program, session)
    network = program.network
    done = session.start.steps
    for _ in range(session.start.epochs, trainer.epochs):
        if session.ends_early:
            break
        network.reset_metrics()
        session.epoch_begins()
        while done < trainer.num_steps and not session.stop.requested.is_set():
            session.check_loss()
            num_steps = schedule(trainer.num_steps - done)
            done += num_steps
            if session.steps_scheduled(num_steps):
                join()
                session.save()
        join()
        session.steps_joined()
        done = 0
        session.epoch_ends({metric.name: float(metric.result()) for metric in network.metrics})


def _scheduler(program: Program, session: Session) -> tuple[Callable[[int], int], Callable[[], None]]:
    """What does or schedules some steps, at most so many, and tells how many; and how to wait for all of them."""
    if program.distribution.coordinator is not None:
        packing = Packing(program, session.feed(), session.stages(), session.packed, planned=session.left)
        return packing.schedule, packing.join

    dataset = session.train_dataset()
    iterator = iter(program.distribution.strategy.experimental_distribute_dataset(dataset()))
    steps, unmeasured = packed(program, Stream(dataset), _alone, Unmeasured()), tf.constant(False)

    def do(most: int) -> int:
        num_steps = min(most, program.config.trainer.num_steps_packed)
        steps(iterator, tf.constant(num_steps), unmeasured)
        return num_steps

    return do, lambda: None


def _alone(num_steps: int, take: Callable[[], Any]) -> contextlib.AbstractContextManager[Callable[[], Any]]:
    """Nothing is kept, bundled or asked for ahead where there are no parameter servers."""
    return contextlib.nullcontext(take)
