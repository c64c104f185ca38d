"""The custom training loop: steps are scheduled on the workers and joined at the end of each epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.closures import InFlight
from psrun.config import RunConfig
from psrun.program import Program
from psrun.training.session import Session


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
        for first in range(done, trainer.steps_per_epoch, trainer.steps_per_execution):
            if session.stop.requested.is_set():
                break
            session.check_loss()
            num_steps = min(trainer.steps_per_execution, trainer.steps_per_epoch - first)
            schedule(num_steps)
            if session.steps_scheduled(num_steps):
                join()
                session.save()
        join()
        session.steps_joined()
        done = 0
        session.epoch_ends({metric.name: float(metric.result()) for metric in network.metrics})


def _scheduler(program: Program, session: Session) -> tuple[Callable[[int], None], Callable[[], None]]:
    """How a number of steps gets done, and how to wait for all of them."""
    strategy, coordinator = program.distribution.strategy, program.distribution.coordinator
    steps = _packed_steps(program)
    if coordinator is None:
        iterator = iter(strategy.experimental_distribute_dataset(session.train_dataset()()))
        return lambda num_steps: steps(iterator, tf.constant(num_steps)), lambda: None

    dataset = functools.partial(session.train_dataset(), context=coordinator)
    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    in_flight = InFlight(program.distribution)

    def schedule(num_steps: int) -> None:
        in_flight.add(coordinator.schedule(steps, args=(iterator, tf.constant(num_steps))))

    return schedule, in_flight.join


def _packed_steps(program: Program) -> Callable[[Any, tf.Tensor], None]:
    """A function of an iterator and a number of steps; it returns nothing, as results would travel to the chief."""
    strategy, network = program.distribution.strategy, program.network

    def steps(iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            strategy.run(network.train_step, args=(next(iterator),))

    return steps if program.config.trainer.run_eagerly else tf.function(steps)
