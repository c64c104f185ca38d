"""Training loops of users: `trainer._target_` names a callable of the program and a `LoopSession`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Step
from psrun.config import choices, targets
from psrun.config.run_config import RunConfig
from psrun.errors import PsrunError, TrainingError
from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.training.custom_loop import Scheduler
from psrun.training.loop import Epoch, Metrics, Trainer, TrainingRun


def trainer(run: RunConfig) -> Trainer:
    """A trainer that calls the configured loop.

    Raises:
      ConfigError: the callable does not exist, or does not take its options.
    """
    assert isinstance(run.trainer, choices.OwnLoop)
    target = run.trainer.target
    return Trainer(functools.partial(_train, target, targets.bound(target, choices.OwnLoop.PARAMETERS)))


def _train(target: targets.Target, loop: Any, program: Program, run: TrainingRun) -> None:
    session = LoopSession(program, run)
    try:
        loop(program=program, session=session)
        session.finish()
    except (PsrunError, OSError, MemoryError, tf.errors.OpError):
        raise
    except Exception as error:
        message = f"{target.name} failed: {type(error).__name__}: {error}"
        raise TrainingError(f"{target.key}._target_: {message}") from error
    if not run.scheduled and run.left and not session.should_stop:
        message = f"{target.name} returned without scheduling a step; call session.schedule(...)"
        raise TrainingError(f"{target.key}._target_: {message}")


class LoopSession:
    """The interface of a custom training loop: it schedules steps; psrun saves, evaluates and reports.

    An epoch begins with its first `schedule` and ends with `end_epoch`. A resumed run begins within the epoch that it
    had reached.
    """

    def __init__(self, program: Program, run: TrainingRun) -> None:
        self._program = program
        self._run = run
        self._scheduler = Scheduler(program, run)

    def epochs(self) -> Iterator[int]:
        """The numbers, from 1, of the remaining epochs of `trainer.epochs`; fewer if the training ends early.

        An epoch that the loop has not ended itself ends, with the metrics of the network, before the next one begins.
        """
        while self._epochs_done < self._run.num_epochs and not self.should_stop:
            number = self._epochs_done + 1
            yield number
            is_empty = self._epochs_done < number and not self._run.stop.requested.is_set()
            if is_empty or not self._run.epoch.is_over:
                self.end_epoch()

    def schedule(self, step: Step | None = None, num_steps: int | None = None) -> int:
        """Schedules steps on the workers; without workers, runs them at once.

        Args:
          step: a function of one batch, (features, label); by default the network's `train_step`. It is traced: pass
            the same function object each time. Its return value is ignored; use metrics.
          num_steps: the number of steps; None for the steps of one execution (`trainer.steps_per_execution`), at most
            `steps_left`.

        Returns:
          The number of scheduled steps: fewer than `num_steps`, and later 0, when the process was asked to stop.

        Raises:
          tf.errors.OpError: a step that was scheduled earlier has failed.
        """
        if self._run.stop.requested.is_set():
            return 0
        epoch = self._running_epoch()
        num_before = epoch.num_steps
        for piece in epoch.pieces(num_steps):
            piece.num_steps = self._scheduler.schedule(piece.max_steps, step)
            self._run.after_piece(piece)
            if num_steps is None:
                break
        return epoch.num_steps - num_before

    def join(self) -> None:
        """Waits for all scheduled steps; raises as `schedule`."""
        self._scheduler.join()
        self._run.check()

    def done(self) -> bool:
        """Whether all scheduled steps are done; does not wait. Raises as `schedule`."""
        self._run.check()
        return self._scheduler.done()

    @property
    def step(self) -> int:
        """Steps applied so far, over all epochs: `optimizer.iterations`."""
        return self._program.iterations

    @property
    def steps_left(self) -> int:
        """Steps of `trainer.steps_per_epoch` not scheduled yet; 0 when the process was asked to stop."""
        run = self._run
        if run.stop.requested.is_set():
            return 0
        return run.steps_per_epoch - run.steps_begun if run.epoch.is_over else run.epoch.steps_left

    @property
    def should_stop(self) -> bool:
        """Whether the loop must return: the process was asked to stop, or early stopping has ended the training."""
        return self._run.stop.requested.is_set() or self._run.ends_early

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

        def numbers() -> Metrics:
            values = self._measured() if metrics is None else metrics
            return {name: None if value is None else float(value) for name, value in values.items()}

        return self._run.after_epoch(self._running_epoch(), numbers)

    def finish(self) -> None:
        """Ends the running epoch when the loop returns."""
        if not self._run.epoch.is_over:
            self.end_epoch()

    @property
    def _epochs_done(self) -> int:
        return self._run.epoch.number if self._run.epoch.is_over else self._run.epoch.number - 1

    def _running_epoch(self) -> Epoch:
        if not self._run.epoch.is_over:
            return self._run.epoch
        self._program.network.reset_metrics()
        return self._run.begin(self._scheduler.join)

    def _measured(self) -> dict[str, Any]:
        """The network's metrics that were updated, as a reset sets their state to zeros, and what a step returned."""
        updated = {
            metric.name: objective.value_of(metric)
            for metric in self._program.network.metrics
            if any(tf.reduce_any(tf.cast(variable, tf.bool)) for variable in metric.variables)
        }
        return {**updated, **self._scheduler.returned()}
