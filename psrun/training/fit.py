"""Training by Keras' Model.fit."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.errors import DataExhaustedError
from psrun.program.compiled_model import Program
from psrun.tf_internals import messages
from psrun.training import callbacks, executions
from psrun.training.evaluation import mergeable
from psrun.training.fit_callbacks import Epochs, ScheduledSteps, StopTogether
from psrun.training.loop import Trainer, TrainingRun


def trainer(run: RunConfig) -> Trainer:
    """Trains a program with the callbacks and, if configured, the validation of `run`; raises ConfigError."""
    callback_list = callbacks.make(run)
    restore = functools.partial(callbacks.restored_by_backups, callback_list)
    return Trainer(functools.partial(_train, callback_list), restore)


def _train(callback_list: list[Any], program: Program, run: TrainingRun) -> None:
    """Runs the rest of an interrupted epoch, then whole epochs: `fit` knows epochs of one length only.

    After a BackupAndRestore callback has restored, `fit` itself knows the epoch and the step to resume at.
    """
    callbacks.check_monitors(callback_list, program)
    backups = callbacks.backups(callback_list)
    if run.lockstep is None:

        def end_fit() -> None:
            program.network.stop_training = True

        run.stop.call_on_request(end_fit)
    else:
        run.lockstep.begin()
        callback_list = [StopTogether(run, run.lockstep), *callback_list]
    begin = run.start.epochs
    steps_done = run.start.steps
    if run.ends_early or begin >= run.num_epochs:
        for callback in backups:
            callback.on_train_end()  # removes the backup, as at the end of `fit`
        return
    steps = None
    if program.distribution.coordinator is not None:
        steps = executions.make(program, run, run.feed(), run.make_profiler())
        callback_list = [*callback_list, ScheduledSteps(program, steps)]
    callback_list = [Epochs(run, steps, first_batch=steps_done if backups else 0), *callback_list]
    if steps_done and not backups:
        _fit(callback_list, program, run, range(begin, begin + 1), run.steps_per_epoch - steps_done)
        if program.network.stop_training:  # by a callback; the next call would reset it
            return
        begin += 1
    if begin < run.num_epochs:
        _fit(callback_list, program, run, range(begin, run.num_epochs), run.steps_per_epoch)


def _fit(callback_list: list[Any], program: Program, run: TrainingRun, epochs: range, steps_per_epoch: int) -> None:
    on_workers = program.distribution.coordinator is not None
    if on_workers:  # without Keras' iterators, which check for another batch at each step: a tenth of the speed
        data: Any = tf_keras.utils.experimental.DatasetCreator(lambda context: tf.data.Dataset.from_tensors(0))
    else:
        data = run.train_dataset()()
    options: dict[str, Any] = {}
    evaluation = program.config.evaluation
    if isinstance(evaluation, choices.Validation):
        examples = mergeable.examples(program) if on_workers else program.evaluation_examples
        options = {"validation_data": examples, "validation_freq": evaluation.every}
    options |= {"initial_epoch": epochs.start, "epochs": epochs.stop, "steps_per_epoch": steps_per_epoch}
    try:
        program.network.fit(data, callbacks=callback_list, verbose=0, **options)
    except ValueError as error:
        if messages.epoch_without_steps(error):
            raise DataExhaustedError.at(program.iterations, run.monitor.planned) from error
        raise
