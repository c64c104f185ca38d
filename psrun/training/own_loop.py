"""Custom training loops: `trainer._target_` names a callable of the program and a `LoopSession`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from psrun.closures.closure_tracing import Step
from psrun.config import choices, targets
from psrun.config.run_config import RunConfig
from psrun.errors import PsrunError, TrainingError
from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.training.loop import TrainingRun
from psrun.training.progress import iterations
from psrun.training.scheduler import Scheduler
from psrun.training.trainer import Trainer


def trainer(run: RunConfig) -> Trainer:
    """A trainer that calls the configured loop.

    Raises:
      ConfigError: the callable does not exist, or does not take its options.
    """
    assert isinstance(run.trainer, choices.OwnLoop)
    target = run.trainer.target
    return Trainer(functools.partial(_train, target, targets.bound(target, choices.OwnLoop.PARAMETERS)))


def _train(target: targets.Target, loop: Any, program: Program, session: TrainingRun) -> None:
    own = LoopSession(program, session)
    try:
        loop(program=program, session=own)
        own.finish()
    except (PsrunError, OSError, MemoryError, tf.errors.OpError):
        raise
    except Exception as error:
        message = f"{target.name} failed: {type(error).__name__}: {error}"
        raise TrainingError(f"{target.key}._target_: {message}") from error
    if not session.scheduled and session.left and not own.should_stop:
        raise TrainingError(f"{target.key}._target_: {target.name} returned without scheduling a step; "
                            "call session.schedule(...)")  # fmt: skip


class LoopSession:
    """The interface of a custom training loop: it schedules steps; psrun saves, evaluates and reports.

    An epoch begins with its first `schedule` and ends with `end_epoch`. A resumed run begins within the epoch that it
    had reached.
    """

    def __init__(self, program: Program, session: TrainingRun) -> None:
        self._program, self._session = program, session
        self._scheduler = Scheduler(program, session)
        self._into = session.start.steps  # of the epoch, scheduled so far
        self._epoch, self._running = session.start.epochs, False

    def epochs(self) -> Iterator[int]:
        """The numbers, from 1, of the remaining epochs of `trainer.epochs`; fewer if the training ends early.

        An epoch that the loop has not ended itself ends, with the metrics of the network, before the next one begins.
        """
        while self._epoch < self._program.config.trainer.num_epochs and not self.should_stop:
            number = self._epoch + 1
            yield number
            if self._running or (self._epoch < number and not self._session.stop.requested.is_set()):
                self.end_epoch()

    def schedule(self, step: Step | None = None, num_steps: int | None = None) -> int:
        """Schedules steps on the workers; without workers, runs them at once.

        Args:
          step: a function of one batch, (features, label); by default the network's `train_step`. It is traced: pass
            the same function object each time. Its return value is ignored; use metrics.
          num_steps: the number of steps; None for those of one execution (`trainer.steps_per_execution`), at most
            `steps_left`.

        Returns:
          The number of scheduled steps: fewer than `num_steps`, and later 0, when the process was asked to stop.

        Raises:
          tf.errors.OpError: a step that was scheduled earlier has failed.
        """
        if self._session.stop.requested.is_set():
            return 0
        self._begin()
        requested = self.steps_left if num_steps is None else num_steps
        total = 0
        while total < requested and not self._session.stop.requested.is_set():
            self._session.check()
            scheduled = self._scheduler.schedule(requested - total, step)
            total += scheduled
            self._into += scheduled
            if self._session.steps_scheduled(scheduled):
                self._scheduler.join()
                self._session.save()
            if num_steps is None:
                break
        return total

    def join(self) -> None:
        """Waits for all scheduled steps; raises as `schedule`."""
        self._scheduler.join()
        self._session.check()

    def done(self) -> bool:
        """Whether all scheduled steps are done; does not wait. Raises as `schedule`."""
        self._session.check()
        return self._scheduler.done()

    @property
    def step(self) -> int:
        """Steps applied so far, over all epochs: `optimizer.iterations`."""
        return iterations(self._program)

    @property
    def steps_left(self) -> int:
        """Steps of `trainer.steps_per_epoch` not scheduled yet; 0 when the process was asked to stop."""
        if self._session.stop.requested.is_set():
            return 0
        return max(0, self._program.config.trainer.num_steps - self._into)

    @property
    def should_stop(self) -> bool:
        """Whether the loop must return: the process was asked to stop, or early stopping has ended the training."""
        return self._session.stop.requested.is_set() or self._session.ends_early

    def end_epoch(self, metrics: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Joins the steps, reports the epoch, takes a checkpoint and evaluates, as configured.

        Args:
          metrics: of the epoch, as numbers; None: the network's metrics that were updated in the epoch, and the values
            that its own `train_step` returned, if it was scheduled.

        Returns:
          The metrics of the evaluation, as `val_*`; empty without an evaluation.

        Raises:
          NonFiniteLossError: `loss` is NaN or infinite.
          Interrupted: the process was asked to stop; do not catch it.
        """
        self._begin()
        self._scheduler.join()
        self._session.steps_joined()
        self._running, self._into = False, 0
        self._epoch += 1
        values = {**_updated(self._program), **self._scheduler.returned()} if metrics is None else metrics
        numbers = {name: None if value is None else float(value) for name, value in values.items()}
        return self._session.epoch_ends(numbers)

    def finish(self) -> None:
        """Ends the running epoch when the loop returns."""
        if self._running:
            self.end_epoch()

    def _begin(self) -> None:
        if not self._running:
            self._running = True
            self._program.network.reset_metrics()
            self._session.epoch_begins()


def _updated(program: Program) -> dict[str, Any]:
    """The network's metrics that were updated: a reset sets their state to zeros."""
    return {
        metric.name: objective.value_of(metric)
        for metric in program.network.metrics
        if any(tf.reduce_any(tf.cast(variable, tf.bool)) for variable in metric.variables)
    }
