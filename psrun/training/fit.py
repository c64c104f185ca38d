"""Training by Keras' `Model.fit`, and the callbacks by which it goes through the loop of a training
run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.checkpoint.storage import Position
from psrun.closures.training_closures import Steps
from psrun.config import choices, targets
from psrun.config.rules import TWO_RESTORES
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, DataExhaustedError, Problem
from psrun.program import objective
from psrun.program.compiled_model import Program, check_monitored_metric
from psrun.tf_internals import keras, messages
from psrun.training import evaluators, loop
from psrun.training.loop import Piece, SynchronizedStop, Trainer, TrainingRun

_SEEN = "examples_seen"
_BATCH_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_KERAS = tf_keras.callbacks.Callback
_LAMBDA = tf_keras.callbacks.LambdaCallback
_MONITORING = (
    tf_keras.callbacks.EarlyStopping,
    tf_keras.callbacks.ReduceLROnPlateau,
    tf_keras.callbacks.ModelCheckpoint,
)
_LEARNING_RATE = "lr"  # which Keras' own callbacks add to the metrics of an epoch


def trainer(run: RunConfig) -> Trainer:
    """Trains a program with the callbacks and, if configured, the validation of `run`; raises ConfigError."""
    callback_list = configured_callbacks(run)
    restore = functools.partial(restored_by_backups, callback_list)
    return Trainer(functools.partial(_train, callback_list), restore)


def _train(callback_list: list[Any], program: Program, run: TrainingRun) -> None:
    """Runs the rest of an interrupted epoch, then whole epochs: `fit` knows epochs of one length only.

    After a BackupAndRestore callback has restored, `fit` itself knows the epoch and the step to resume at.
    """
    check_monitors(callback_list, program)
    backups = backup_callbacks(callback_list)
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
        steps = loop.steps_on_workers(program, run, run.feed(), run.make_profiler())
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
        examples = evaluators.validation_examples(program) if on_workers else program.evaluation_examples
        options = {"validation_data": examples, "validation_freq": evaluation.every}
    options |= {"initial_epoch": epochs.start, "epochs": epochs.stop, "steps_per_epoch": steps_per_epoch}
    try:
        program.network.fit(data, callbacks=callback_list, verbose=0, **options)
    except ValueError as error:
        if messages.epoch_without_steps(error):
            raise DataExhaustedError.at(program.iterations, run.monitor.planned) from error
        raise


class Epochs(tf_keras.callbacks.Callback):
    """Begins and ends the epochs of a run. Put it first: the callbacks after it see what it adds to the logs.

    Args:
      steps: schedules the steps on workers; None if Keras runs them synchronously.
      first_batch: the number, from 0, that Keras gives the first batch of the first epoch.
    """

    def __init__(self, run: TrainingRun, steps: Steps | None, *, first_batch: int = 0) -> None:
        super().__init__()
        keras.give_unread_logs(self)
        self._run = run
        self._steps = steps
        self._num_batches = 0
        self._first_batch = first_batch
        self._last: Any = None
        self._own: dict[str, float | None] | None = None
        self._undefined_in_training: list[str] = []
        self._validation_began_s = 0.0
        self._validation_s = 0.0

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
        self._validation_began_s = time.monotonic()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._validation_s = round(time.monotonic() - self._validation_began_s, 3)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._join()
        logs = {} if logs is None else logs
        logs.pop(_SEEN, None)
        metrics, validation = _by_data(logs)
        if self._own is not None:
            metrics = self._own
        metrics |= dict.fromkeys(self._undefined_in_training)
        if type(self.model).test_step is tf_keras.Model.test_step:  # another one may report other metrics
            validation |= dict.fromkeys(self._undefined(validation))
        examples_seen = int(validation.pop(_SEEN, 0) or 0)
        validated = None
        if validation:
            validated = (examples_seen, validation, self._validation_s)
        # Keras' callbacks take what is not in the logs as not measured.
        logs.clear()
        logs |= evaluators.defined(metrics)
        logs |= evaluators.defined({f"val_{name}": value for name, value in validation.items()})
        logs |= self._run.after_epoch(self._run.epoch, lambda: metrics, validated)
        if self._run.ends_early:
            self.model.stop_training = True

    def _undefined(self, names: Collection[str]) -> list[str]:
        """The metrics that are undefined by the examples which were the last to update them."""
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


def _by_data(logs: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """The metrics of the training data, and the metrics of the validation data without `val_`."""
    training: dict[str, float | None] = {}
    validation: dict[str, float | None] = {}
    for name, value in logs.items():
        if name.startswith("val_"):
            validation[name.removeprefix("val_")] = float(value)
        else:
            training[name] = float(value)
    return training, validation


class ScheduledSteps(tf_keras.callbacks.Callback):
    """Makes `fit` schedule steps on workers. Put it last.

    `fit` looks up its train function right after the callbacks. It must not do so while another thread saves the model.
    """

    def __init__(self, program: Program, steps: Steps) -> None:
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
        if self._lockstep.after_execution(self._done, is_requested=self._run.stop.requested.is_set()):
            self._run.stop.follow()
            self.model.stop_training = True


def made_callbacks(nodes: Sequence[Any], key: str) -> list[tf_keras.callbacks.Callback]:
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


def configured_callbacks(run: RunConfig) -> list[tf_keras.callbacks.Callback]:
    """The callbacks of the training.

    Raises:
      ConfigError: an object is not a Keras callback, or has batch-level methods although the steps run on workers.
    """
    callbacks = made_callbacks(run.trainer.callbacks, "trainer.callbacks")
    problems = []
    for index, callback in enumerate(callbacks):
        key = f"trainer.callbacks[{index}]"
        own = [name for name in _BATCH_METHODS if getattr(type(callback), name) is not getattr(_KERAS, name)]
        if run.checkpoint.are_taken and backup_callbacks([callback]):
            problems.append(Problem(key, TWO_RESTORES))  # a class of another name
        elif run.cluster.has_parameter_servers and own and not keras.takes_unread_logs(callback):
            name = run.trainer.callbacks[index]["_target_"]
            why = "with parameter servers only epoch-level methods are called"
            instead = "use trainer.hooks with every_steps, which psrun calls at most twice a second"
            problems.append(Problem(key, f"{name} has {', '.join(own)}, but {why}; {instead}"))
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
        if not isinstance(callback, _MONITORING) or callback.monitor == _LEARNING_RATE:
            continue
        if isinstance(callback, tf_keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
            continue
        if callback.monitor is not None:
            check_monitored_metric(f"trainer.callbacks[{index}].monitor", callback.monitor, program)


def backup_callbacks(made: list[tf_keras.callbacks.Callback]) -> list[tf_keras.callbacks.BackupAndRestore]:
    """The callbacks that restore the training themselves."""
    return [callback for callback in made if isinstance(callback, tf_keras.callbacks.BackupAndRestore)]


def restored_by_backups(made: list[tf_keras.callbacks.Callback], program: Program) -> Position | None:
    """Restores the state of a BackupAndRestore callback, as `fit` does later, so that psrun counts from there.

    Returns:
      Its position; None without a backup.
    """
    restoring = backup_callbacks(made)
    if not restoring:
        return None
    with program.distribution.strategy.scope():
        for callback in restoring:
            callback.set_model(program.network)
            callback.on_train_begin()
    epochs, steps = keras.position_in_backup(program.network, program.config.trainer.num_steps)
    done = program.iterations
    if not done:
        return None
    order = program.data.order.geometry if program.data.order else None
    return Position(epochs, steps, scheduled=done, stream=0, batch=done, order=order)
