"""Training by Keras' Model.fit."""

from __future__ import annotations

import functools
import threading
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.checkpoint.manifest import Position
from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.errors import DataExhaustedError
from psrun.program.compiled_model import Program
from psrun.tf_internals import keras, messages
from psrun.training import callbacks, executions
from psrun.training.evaluation import mergeable
from psrun.training.executions import Executions
from psrun.training.loop import TrainingRun
from psrun.training.progress import iterations
from psrun.training.trainer import Trainer


def trainer(run: RunConfig) -> Trainer:
    """Trains a program with the callbacks and, if configured, the validation of `run`.

    Raises:
      ConfigError: a callback cannot be created or cannot be used here.
    """
    callback_list = callbacks.make(run)
    return Trainer(functools.partial(_train, callback_list), functools.partial(_restore, callback_list))


def _restore(callback_list: list[Any], program: Program) -> Position | None:
    """Restores the state of a BackupAndRestore callback, as `fit` does later, so that psrun counts from there."""
    backups = callbacks.backups(callback_list)
    if not backups:
        return None
    with program.distribution.strategy.scope():
        for callback in backups:
            callback.set_model(program.network)
            callback.on_train_begin()
    epochs, steps = keras.position_in_backup(program.network, program.config.trainer.num_steps)
    steps_done = iterations(program)
    if not steps_done:
        return None
    order = program.order
    return Position(
        epochs, steps, scheduled=steps_done, stream=0, batch=steps_done, order=order.geometry if order else None
    )


def _train(callback_list: list[Any], program: Program, session: TrainingRun) -> None:
    """Runs the rest of an interrupted epoch, then whole epochs: `fit` knows epochs of one length only.

    After a BackupAndRestore callback has restored, `fit` itself knows the epoch and the step to resume at.
    """
    callbacks.check_monitors(callback_list, program)
    steps_per_epoch, epochs = program.config.trainer.num_steps, program.config.trainer.num_epochs
    if session.lockstep is None:
        session.stop.on_request = lambda: setattr(program.network, "stop_training", True)
    else:
        if session.lockstep.leads:
            session.lockstep.marker.unlink(missing_ok=True)  # of the previous chief
        callback_list = [callbacks.StopTogether(session, session.lockstep), *callback_list]
    epochs_done, steps_done = session.start.epochs, session.start.steps
    backups = callbacks.backups(callback_list)
    if session.ends_early or epochs_done >= epochs:
        for callback in backups:
            callback.on_train_end()  # removes the backup, as at the end of `fit`
        return
    packing = None
    if program.distribution.coordinator is not None:
        packing = executions.make(program, session, session.feed(), session.stages())
        saves = keras.lock_of_saves(program.network)
        execution = functools.partial(_execution, program, packing, saves)
        keras.replace_train_function(program.network, execution)
    callback_list = [callbacks.Epochs(session, packing, first_batch=steps_done if backups else 0), *callback_list]
    if packing is not None:
        callback_list.append(callbacks.BetweenSaves(saves))
    if steps_done and not backups:
        _fit(callback_list, program, session, range(epochs_done, epochs_done + 1), steps_per_epoch - steps_done)
        if program.network.stop_training:  # by a callback; the next call would reset it
            return
        epochs_done += 1
    if epochs_done < epochs:
        _fit(callback_list, program, session, range(epochs_done, epochs), steps_per_epoch)


def _fit(callback_list: list[Any], program: Program, session: TrainingRun, epochs: range, steps_per_epoch: int) -> None:
    run = program.config
    if program.distribution.coordinator is not None:
        # The steps do not use Keras' iterators, which check for another batch at each step and cost a tenth of the
        # speed.
        data: Any = tf_keras.utils.experimental.DatasetCreator(lambda context: tf.data.Dataset.from_tensors(0))
    else:
        data = session.train_dataset()()
    validation: dict[str, Any] = {}
    if isinstance(run.evaluation, choices.Validation):
        on_workers = program.distribution.coordinator is not None
        evaluated = mergeable.examples(program) if on_workers else program.evaluation_examples
        validation = {"validation_data": evaluated, "validation_freq": run.evaluation.every}
    try:
        program.network.fit(
            data,
            initial_epoch=epochs.start,
            epochs=epochs.stop,
            steps_per_epoch=steps_per_epoch,
            callbacks=callback_list,
            verbose=0,
            **validation,
        )
    except ValueError as error:
        if messages.epoch_without_steps(error):
            raise DataExhaustedError.at(iterations(program), session.monitor.planned) from error
        raise


def _execution(program: Program, packing: Executions, saves: threading.Lock, _: Any) -> Any:
    """Schedules the steps of one execution; replaces the train function that Keras would create.

    Args:
      saves: acquired by `callbacks.BetweenSaves` before the call; released here.

    Returns:
      The logs: placeholders, which the metrics replace when the epoch is joined; or the additional values that the
      network's own `train_step` returned in the last step of the closure.
    """
    saves.release()
    now = program.network.steps_per_execution  # Keras reduces it to the rest of the epoch
    before = packing.num_steps
    packing.schedule(int(now))
    if packing.num_steps != before:
        now.assign(packing.num_steps)
    return packing.logs
