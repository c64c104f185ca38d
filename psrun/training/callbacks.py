"""Keras callbacks of the configuration, and the callback that reports the epochs of `fit` to psrun."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

import tf_keras

from psrun.config import targets
from psrun.config.keras_callbacks import TWO_RESTORES
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.program.monitored import check_metric
from psrun.tf_internals import keras
from psrun.training.executions import Executions
from psrun.training.loop import TrainingRun
from psrun.training.synchronized_stop import SynchronizedStop

_BATCH_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_SEEN = "examples_seen"
_LAMBDA = tf_keras.callbacks.LambdaCallback
_MONITORING = (
    tf_keras.callbacks.EarlyStopping,
    tf_keras.callbacks.ReduceLROnPlateau,
    tf_keras.callbacks.ModelCheckpoint,
)
_LEARNING_RATE = "lr"  # which Keras' own callbacks add to the metrics of an epoch


def made(nodes: Sequence[Any], key: str) -> list[tf_keras.callbacks.Callback]:
    """The callbacks that a list under `key` names, each by a _target_ with its arguments.

    Raises:
      ConfigError: a callback cannot be created, or is not a Keras callback.
    """
    callbacks, problems = [], []
    for index, node in enumerate(nodes):
        where = f"{key}[{index}]"
        options = {name: value for name, value in node.items() if name != "_target_"}
        callback = targets.called(targets.Target(node["_target_"], options, where))
        callbacks.append(callback)
        if not isinstance(callback, tf_keras.callbacks.Callback):
            message = f"{node['_target_']} returned a {type(callback).__name__}, not a callback of tf-keras"
            if any(each.__module__.startswith("keras.") for each in type(callback).__mro__):
                message += ", which trains models of Keras 3, too; derive it from tf_keras.callbacks.Callback"
            problems.append(Problem(where, message))
    if problems:
        raise ConfigError(problems)
    return callbacks


def make(run: RunConfig) -> list[tf_keras.callbacks.Callback]:
    """The callbacks of the training.

    Raises:
      ConfigError: an object is not a Keras callback, or has batch-level methods although the steps run on workers.
    """
    problems, base = [], tf_keras.callbacks.Callback
    callbacks = made(run.trainer.callbacks, "trainer.callbacks")
    for index, (node, callback) in enumerate(zip(run.trainer.callbacks, callbacks)):
        key = f"trainer.callbacks[{index}]"
        if run.checkpoint.are_taken and backups([callback]):
            problems.append(Problem(key, TWO_RESTORES))  # a class of another name
        elif run.cluster.has_parameter_servers and not keras.takes_unread_logs(callback):
            overridden = [name for name in _BATCH_METHODS if getattr(type(callback), name) is not getattr(base, name)]
            if overridden:
                problems.append(
                    Problem(key, f"{node['_target_']} has {', '.join(overridden)}, but with parameter servers only "
                            "epoch-level methods are called; use trainer.hooks with every_steps")
                )  # fmt: skip
    if problems:
        raise ConfigError(problems)
    return callbacks


def check_monitors(made: list[tf_keras.callbacks.Callback], program: Program) -> None:
    """Raises ConfigError if one of Keras' callbacks monitors a metric that no epoch of the program reports.

    Keras only warns about it, at each epoch. A user's callback may add metrics for the callbacks after it, so those are
    not checked.
    """
    for index, callback in enumerate(made):
        if type(callback).__module__.partition(".")[0] != "tf_keras" or type(callback) is _LAMBDA:
            return
        monitor = callback.monitor if isinstance(callback, _MONITORING) else None
        if isinstance(callback, tf_keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
            monitor = None
        if monitor is not None and monitor != _LEARNING_RATE:
            check_metric(f"trainer.callbacks[{index}].monitor", monitor, program)


def backups(made: list[tf_keras.callbacks.Callback]) -> list[tf_keras.callbacks.BackupAndRestore]:
    """The callbacks that restore the training themselves."""
    return [callback for callback in made if isinstance(callback, tf_keras.callbacks.BackupAndRestore)]


class Epochs(tf_keras.callbacks.Callback):
    """Reports each epoch to the session. Put it first: the callbacks after it see what it adds to the logs.

    Args:
      packing: schedules the steps on workers; None if Keras runs them synchronously.
      first_batch: the number, from 0, that Keras gives the first batch of the first epoch.
    """

    def __init__(self, session: TrainingRun, packing: Executions | None, *, first_batch: int = 0) -> None:
        super().__init__()
        keras.give_unread_logs(self)
        self._session = session
        self._joined = False
        self._scheduled, self._first_batch = 0, first_batch
        self._packing = packing
        self._last: Any = None
        self._own: dict[str, float | None] | None = None
        self._undefined_in_training: list[str] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._joined, self._scheduled, self._first_batch = False, self._first_batch, 0
        if self._packing is not None:
            # Keras restores the value from before the last execution of an epoch, which may be shorter.
            self.model.steps_per_execution.assign(self._packing.num_steps)
        self._session.epoch_begins()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        num_steps = int(batch) + 1 - self._scheduled  # Keras counts in NumPy after a restore
        self._scheduled += num_steps  # under parameter servers they are not done yet
        self._last = logs
        if self._session.lockstep is None:  # else all processes stop together
            self._session.check()
        if self._session.steps_scheduled(num_steps):
            if self._packing is not None:
                self._packing.join()
            self._session.save()
        if self._session.stop.requested.is_set() and self._session.lockstep is None:
            self.model.stop_training = True  # the request may precede `fit`, which resets it

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._join()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._join()
        logs = {} if logs is None else logs
        logs.pop(_SEEN, None)
        validation: dict[str, float | None] = {
            name[4:]: float(value) for name, value in logs.items() if name.startswith("val_")
        }
        metrics: dict[str, float | None] = {
            name: float(value) for name, value in logs.items() if not name.startswith("val_")
        }
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
        logs |= self._session.epoch_ends(metrics, (examples_seen, validation) if validation else None)
        if self._session.ends_early:
            self.model.stop_training = True

    def _undefined(self, names: Collection[str]) -> list[str]:
        """Those of the metrics that are undefined by the examples which were the last to update them."""
        return [
            metric.name
            for metric in self.model.compiled_metrics.metrics
            if metric.name in names and objective.is_undefined(metric)
        ]

    def _join(self) -> None:
        """Joins the steps of the epoch: before Keras' validation, or at the end of the epoch."""
        if not self._joined:
            self._joined = True
            if self._packing is not None:
                self._packing.join()
            self._session.steps_joined()
            program = self._session.program
            if (own := program.own_step) is not None:
                self._own = own.results(self._last)  # before Keras' validation resets the metrics
            else:
                self._undefined_in_training = self._undefined(program.metric_names)


class BetweenSaves(tf_keras.callbacks.Callback):
    """Lets `fit` look up its train function only while no other thread saves the model. Put it last.

    Args:
      saves: acquired before each execution, which releases it as soon as it has begun.
    """

    def __init__(self, saves: threading.Lock) -> None:
        super().__init__()
        keras.give_unread_logs(self)
        self._saves = saves

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._saves.acquire()


class StopTogether(tf_keras.callbacks.Callback):
    """Stops this process after the same execution as the other processes that train in lockstep."""

    def __init__(self, session: TrainingRun, lockstep: SynchronizedStop) -> None:
        super().__init__()
        keras.give_unread_logs(self)
        self._session, self._lockstep = session, lockstep
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._done += 1
        last = self._lockstep.last()
        if last == self._done:
            self._lockstep.agreed = True
            self._session.stop.follow()
            self.model.stop_training = True
        elif last is None and self._lockstep.leads and self._session.stop.requested.is_set():
            self._lockstep.agree_on(self._done + 1)
