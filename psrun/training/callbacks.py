"""Keras callbacks of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tf_keras

from psrun.checkpoint.manifest import Position
from psrun.config import targets
from psrun.config.keras_callbacks import TWO_RESTORES
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.program.monitored import check_metric
from psrun.tf_internals import keras

_BATCH_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_KERAS = tf_keras.callbacks.Callback
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
    callbacks = []
    problems = []
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
    callbacks = made(run.trainer.callbacks, "trainer.callbacks")
    problems = []
    for index, callback in enumerate(callbacks):
        key = f"trainer.callbacks[{index}]"
        own = [name for name in _BATCH_METHODS if getattr(type(callback), name) is not getattr(_KERAS, name)]
        if run.checkpoint.are_taken and backups([callback]):
            problems.append(Problem(key, TWO_RESTORES))  # a class of another name
        elif run.cluster.has_parameter_servers and own and not keras.takes_unread_logs(callback):
            name = run.trainer.callbacks[index]["_target_"]
            why = "with parameter servers only epoch-level methods are called; use trainer.hooks with every_steps"
            problems.append(Problem(key, f"{name} has {', '.join(own)}, but {why}"))
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


def restored_by_backups(made: list[tf_keras.callbacks.Callback], program: Program) -> Position | None:
    """Restores the state of a BackupAndRestore callback, as `fit` does later, so that psrun counts from there.

    Returns:
      Its position; None without a backup.
    """
    restoring = backups(made)
    if not restoring:
        return None
    with program.distribution.strategy.scope():
        for callback in restoring:
            callback.set_model(program.network)
            callback.on_train_begin()
    epochs, steps = keras.position_in_backup(program.network, program.config.trainer.num_steps)
    done = program.iterations
    order = program.order.geometry if program.order else None
    return Position(epochs, steps, scheduled=done, stream=0, batch=done, order=order) if done else None
