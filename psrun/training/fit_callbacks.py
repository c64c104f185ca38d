"""The callbacks by which Keras' `fit` goes through the loop of a training run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tf_keras

from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.tf_internals import keras
from psrun.training.executions import Executions
from psrun.training.loop import Piece, TrainingRun
from psrun.training.synchronized_stop import SynchronizedStop

_SEEN = "examples_seen"


class Epochs(tf_keras.callbacks.Callback):
    """Begins and ends the epochs of a run. Put it first: the callbacks after it see what it adds to the logs.

    Args:
      steps: schedules the steps on workers; None if Keras runs them synchronously.
      first_batch: the number, from 0, that Keras gives the first batch of the first epoch.
    """

    def __init__(self, run: TrainingRun, steps: Executions | None, *, first_batch: int = 0) -> None:
        super().__init__()
        keras.give_unread_logs(self)
        self._run = run
        self._steps = steps
        self._num_batches = 0
        self._first_batch = first_batch
        self._last: Any = None
        self._own: dict[str, float | None] | None = None
        self._undefined_in_training: list[str] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._num_batches = self._first_batch
        self._first_batch = 0
        if self._steps is not None:
            # Keras restores the value from before the last execution of an epoch, which may be shorter.
            self.model.steps_per_execution.assign(self._steps.num_steps)
        self._run.begin(self._wait)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        num_steps = int(batch) + 1 - self._num_batches  # Keras counts in NumPy after a restore
        self._num_batches += num_steps  # under parameter servers they are not done yet
        self._last = logs
        run = self._run
        if run.lockstep is None:  # else all processes stop together
            run.check()
        run.after_piece(Piece(num_steps, num_steps))
        if run.stop.requested.is_set() and run.lockstep is None:
            self.model.stop_training = True  # the request may precede `fit`, which resets it

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._join()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._join()
        logs = {} if logs is None else logs
        logs.pop(_SEEN, None)
        metrics: dict[str, float | None] = {}
        validation: dict[str, float | None] = {}
        for name, value in logs.items():
            if name.startswith("val_"):
                validation[name[4:]] = float(value)
            else:
                metrics[name] = float(value)
        if self._own is not None:
            metrics = self._own
        metrics |= dict.fromkeys(self._undefined_in_training)
        if type(self.model).test_step is tf_keras.Model.test_step:  # another one may report other metrics
            validation |= dict.fromkeys(self._undefined(validation))
        # Keras' callbacks take what is not in the logs as not measured.
        logs.clear()
        logs |= {name: value for name, value in metrics.items() if value is not None}
        logs |= {f"val_{name}": value for name, value in validation.items() if value is not None and name != _SEEN}
        examples_seen = int(validation.pop(_SEEN, 0) or 0)
        validated = (examples_seen, validation) if validation else None
        logs |= self._run.after_epoch(self._run.epoch, lambda: metrics, validated)
        if self._run.ends_early:
            self.model.stop_training = True

    def _undefined(self, names: Collection[str]) -> list[str]:
        """Those of the metrics that are undefined by the examples which were the last to update them."""
        return [
            metric.name
            for metric in self.model.compiled_metrics.metrics
            if metric.name in names and objective.is_undefined(metric)
        ]

    def _wait(self) -> None:
        if self._steps is not None:
            self._steps.join()

    def _join(self) -> None:
        """Joins the steps of the epoch: before Keras' validation, which resets the metrics, or at the end."""
        if self._run.epoch.is_joined:
            return
        self._run.join()
        program = self._run.program
        if program.own_step is not None:
            self._own = program.own_step.results(self._last)
        else:
            self._undefined_in_training = self._undefined(program.metric_names)


class ScheduledSteps(tf_keras.callbacks.Callback):
    """Makes `fit` schedule steps on workers. Put it last.

    `fit` looks up its train function right after the callbacks. It must not do so while another thread saves the model.
    """

    def __init__(self, program: Program, steps: Executions) -> None:
        super().__init__()
        keras.give_unread_logs(self)
        self._steps = steps
        self._saves = keras.lock_of_saves(program.network)
        keras.replace_train_function(program.network, self._execution)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._saves.acquire()

    def _execution(self, iterator: Any) -> Any:
        """Schedules the steps of one execution; replaces the train function that Keras would create.

        Returns:
          The logs: placeholders, which the metrics replace when the epoch is joined; or the additional values that the
          network's own `train_step` returned in the last step of the closure.
        """
        self._saves.release()
        num_steps = self.model.steps_per_execution
        before = self._steps.num_steps
        self._steps.schedule(int(num_steps))  # Keras reduces it to the rest of the epoch
        if self._steps.num_steps != before:
            num_steps.assign(self._steps.num_steps)
        return self._steps.logs


class StopTogether(tf_keras.callbacks.Callback):
    """Stops this process after the same execution as the other processes that train in lockstep."""

    def __init__(self, run: TrainingRun, lockstep: SynchronizedStop) -> None:
        super().__init__()
        keras.give_unread_logs(self)
        self._run = run
        self._lockstep = lockstep
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._done += 1
        last = self._lockstep.last()
        if last == self._done:
            self._lockstep.agreed = True
            self._run.stop.follow()
            self.model.stop_training = True
        elif last is None and self._lockstep.leads and self._run.stop.requested.is_set():
            self._lockstep.agree_on(self._done + 1)
