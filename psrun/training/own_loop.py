"""A person's own training loop, named by `trainer._target_`: a callable of the program and a `LoopSession`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from psrun.config import choices, targets
from psrun.config.run_config import RunConfig
from psrun.errors import PsrunError, TrainingError
from psrun.program.compiled_model import Program
from psrun.training.parameter_server.closure_tracing import Step
from psrun.training.progress import iterations
from psrun.training.scheduler import Scheduler
from psrun.training.session import Session
from psrun.training.trainer import Trainer


def trainer(run: RunConfig) -> Trainer:
    """Trains a program by the loop that the run names.

    Raises:
      ConfigError: there is no such callable, or it does not take its options.
    """
    assert isinstance(run.trainer, choices.OwnLoop)
    target = run.trainer.target
    return Trainer(functools.partial(_train, target, targets.bound(target, choices.OwnLoop.PARAMETERS)))


def _train(target: targets.Target, loop: Any, program: Program, session: Session) -> None:
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
    """What a person's own training loop works with: it schedules steps, and psrun saves, evaluates and reports.

    An epoch begins with the first `schedule` in it and ends with `end_epoch`. A run that is resumed begins within the
    epoch that it had reached.
    """

    def __init__(self, program: Program, session: Session) -> None:
        self._program, self._session = program, session
        self._scheduler = Scheduler(program, session)
        self._into = session.start.steps  # of the epoch, scheduled so far
        self._epoch, self._running = session.start.epochs, False

    def epochs(self) -> Iterator[int]:
        """The numbers, from 1, of the epochs that are left of `trainer.epochs`; fewer where the training ends early.

        An epoch that the loop has not ended itself is ended with the metrics of the network before the next one begins.
        """
        while self._epoch < self._program.config.trainer.epochs and not self.should_stop:
            number = self._epoch + 1
            yield number
            if self._running or (self._epoch < number and not self._session.stop.requested.is_set()):
                self.end_epoch()

    def schedule(self, step: Step | None = None, num_steps: int | None = None) -> int:
        """Schedules steps on the workers, or does them where there are none.

        Args:
          step: a function of one batch, (features, label), as the network's `train_step`, which is the default. It is
            traced: give the same function object each time. What it returns is left out; count in metrics.
          num_steps: how many; None for those of one execution (`trainer.steps_per_execution`), at most `steps_left`.

        Returns:
          How many were scheduled: fewer than `num_steps` where the process is asked to end, and then 0.

        Raises:
          tf.errors.OpError: a step that was scheduled before has failed.
        """
        if self._session.stop.requested.is_set():
            return 0
        self._begin()
        wanted = self.steps_left if num_steps is None else num_steps
        done = 0
        while done < wanted and not self._session.stop.requested.is_set():
            self._session.check()
            scheduled = self._scheduler.schedule(wanted - done, step)
            done += scheduled
            self._into += scheduled
            if self._session.steps_scheduled(scheduled):
                self._scheduler.join()
                self._session.save()
            if num_steps is None:
                break
        return done

    def join(self) -> None:
        """Waits for all steps that were scheduled; raises as `schedule`."""
        self._scheduler.join()
        self._session.check()

    def done(self) -> bool:
        """Whether all steps that were scheduled are done; does not wait. Raises as `schedule`."""
        self._session.check()
        return self._scheduler.done()

    @property
    def step(self) -> int:
        """Steps applied so far, over all epochs: `optimizer.iterations`."""
        return iterations(self._program)

    @property
    def steps_left(self) -> int:
        """Steps of `trainer.steps_per_epoch` that are not scheduled yet; 0 where the process is asked to end."""
        if self._session.stop.requested.is_set():
            return 0
        return max(0, self._program.config.trainer.num_steps - self._into)

    @property
    def should_stop(self) -> bool:
        """Whether the loop is to return: the process is asked to end, or early stopping has ended the training."""
        return self._session.stop.requested.is_set() or self._session.ends_early

    def end_epoch(self, metrics: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Joins the steps, reports the epoch, takes a checkpoint and evaluates, as configured.

        Args:
          metrics: of the epoch, as numbers; None for those of the network's metrics that were updated in it, and for
            what a `train_step` of its own returned, if it was scheduled.

        Returns:
          The evaluation's metrics, as `val_*`; empty where there was none.

        Raises:
          NonFiniteLossError: `loss` is NaN or infinite.
          Interrupted: the process is asked to end; let it pass.
        """
        self._begin()
        self._scheduler.join()
        self._session.steps_joined()
        self._running, self._into = False, 0
        self._epoch += 1
        given = {**_updated(self._program), **self._scheduler.returned()} if metrics is None else metrics
        return self._session.epoch_ends({name: float(value) for name, value in given.items()})

    def finish(self) -> None:
        """Ends the epoch that is under way when the loop returns."""
        if self._running:
            self.end_epoch()

    def _begin(self) -> None:
        if not self._running:
            self._running = True
            self._program.network.reset_metrics()
            self._session.epoch_begins()


def _updated(program: Program) -> dict[str, Any]:
    """The network's metrics whose state is not what it is after a reset: all zeros."""
    return {
        metric.name: metric.result()
        for metric in program.network.metrics
        if any(tf.reduce_any(tf.cast(variable, tf.bool)) for variable in metric.variables)
    }
