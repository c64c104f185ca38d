"""What is done around the epochs of a training, each as an action, and the order in which it is done.

An action is what a hook of the user is: a callable of a `HookContext`. psrun's own actions also know their run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

from psrun.config.topology import CHIEF, Task, Topology
from psrun.errors import DataExhaustedError, NonFiniteLossError
from psrun.program import objective
from psrun.program.compiled_model import Program, traced_forward
from psrun.results import events, profiles
from psrun.tf_internals import keras
from psrun.training import evaluators
from psrun.training.checkpointing import CheckpointSchedule
from psrun.training.evaluators import Evaluation, Evaluator, undefined_warning
from psrun.training.hooks import HookContext, Hooks
from psrun.training.loop import Actions, TrainingRun
from psrun.training.metric_policies import MetricPolicies

_START_WITHIN_S = 20.0
_WRITE_WITHIN_S = 60.0


def in_order(
    run: TrainingRun,
    *,
    hooks: Hooks,
    policies: MetricPolicies,
    schedule: CheckpointSchedule | None,
    evaluator: Evaluator | None,
    profile: ProfileWindow | None = None,
) -> Actions:
    """The actions of a training.

    Args:
      schedule: of checkpoints; None if none are taken.
      evaluator: None if this process evaluates nothing.
      profile: None if no steps are profiled.

    Raises:
      ConfigError: some predictions of the first training batch are no probabilities.
    """
    check_predictions = prediction_check(run.program)
    check_predictions()
    checks = Checks(run, check_predictions)
    reports = Reports(run)
    saves = Saves(run, schedule, checks, hooks)
    evaluations = Evaluations(run, evaluator, schedule)
    return Actions(
        before_epoch=[
            policies.lower_rate,  # a learning rate that falls has one value for all steps of an epoch
            *([profile.before_epoch] if profile else []),  # last: the profile has only steps
        ],
        during_epoch=[
            hooks.check,  # raises the error of a hook that runs in a thread
            saves.check,  # raises the error of a checkpoint that is written meanwhile
            checks.running_loss,  # a loss that is not finite ends the run within the epoch
        ],
        after_piece=[
            *([profile.after_piece] if profile else []),  # before a checkpoint, which is no step
            saves.within_epoch,  # a checkpoint that is due, when the steps so far are done and their loss is finite
        ],
        when_joined=[
            reports.staleness,  # how old the weights were for which gradients were computed
            reports.waits,  # how long workers waited for each other
        ],
        after_epoch=[
            checks.loss,  # first: values that are not finite are neither saved nor reported
            saves.cut_epoch,  # the resumed run reports the epoch, which is not over
            reports.epoch,  # what was measured is reported before anything else may fail
            policies.after_training,  # before the checkpoint, which has the learning rate that was decided on
            checks.num_steps,  # before the checkpoint, whose position would be beyond the end of the data
            saves.after_epoch,  # before the evaluation, which may fail, or last longer than the process may
            evaluations.after_epoch,  # if it is due
            evaluations.compare,  # the values of the evaluation belong to the checkpoint
            policies.after_evaluation,  # early stopping and the learning rate may follow a metric of the evaluation
            saves.before_hooks,  # a hook finds the checkpoint of its epoch on disk
            hooks.after_epoch,  # with all metrics; a hook that fails finds checkpoint and evaluation recorded
            saves.interrupt,  # last: what was measured is recorded
        ],
        at_end=[
            *([profile.at_end] if profile else []),  # first: the steps are over
            evaluations.catch_up,  # a run that an earlier process trained to its end, but did not evaluate
            saves.at_end,  # the last checkpoint; all of them are on disk
            hooks.end,  # whose threads have seen the last step
        ],
    )


class Checks:
    """Ends a training that cannot succeed."""

    def __init__(self, run: TrainingRun, check_predictions: Callable[[], None]) -> None:
        self._run = run
        self._check_predictions = check_predictions

    def running_loss(self, context: HookContext) -> None:
        """Raises NonFiniteLossError once the monitor has seen a loss that is not finite."""
        if self._run.monitor.non_finite_loss is not None:
            self._require_finite(self._run.monitor.non_finite_loss)

    def loss(self, context: HookContext) -> None:
        """Raises NonFiniteLossError; also checks what the network returns, after the first epoch."""
        self._require_finite(context.metrics.get("loss", 0.0))
        if self._run.program.own_step is not None:  # whose loss is the loss of the last step
            self.mean_loss(context)
        if context.epoch == self._run.start.epochs + 1:
            self._check_predictions()  # with the weights that it began with, they may all have been 0 to 1

    def mean_loss(self, context: HookContext) -> None:
        """Raises NonFiniteLossError if the mean loss of the steps so far is not finite."""
        self._require_finite(self._run.monitor.loss() or 0.0)

    def num_steps(self, context: HookContext) -> None:
        """Raises DataExhaustedError if an epoch is over before all of its steps.

        Keras only warns of data that ends; steps may be run twice, but never fewer than were scheduled.
        """
        run = self._run
        if not run.program.config.trainer.has_fixed_epochs:
            return
        missing = run.steps_per_epoch - run.epoch.num_steps
        is_cut = missing > 0 and not run.program.network.stop_training
        if is_cut or context.step - run.first_step < run.scheduled:
            raise DataExhaustedError.at(context.step, run.first_step + run.scheduled + missing)

    def _require_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise NonFiniteLossError.of_loss(loss, self._run.epoch.number)


def prediction_check(program: Program) -> Callable[[], None]:
    """A function that raises ConfigError if some predictions of the first training batch are no probabilities.

    It computes them in this process. It does nothing if the last layer of the model shows that they are, or if the
    model has its own `train_step` and there is no evaluation: then none of psrun's losses and metrics reads them.
    """
    is_read = program.own_step is None or program.config.evaluation.runs_on is not None
    if not is_read or not program.may_be_logits:
        return lambda: None
    features = next(iter(program.data.first_batches))[0]
    forward = traced_forward(program)

    def check() -> None:
        count = int(objective.num_outside(forward(features)))
        if count:
            raise objective.outside_error(count, "the first batch")

    return check


class Reports:
    """Reports each epoch as events."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._has_warned = False

    def staleness(self, context: HookContext) -> None:
        """The staleness of the updates of the epoch, if it is known."""
        run = self._run
        if not run.program.config.cluster.has_workers:
            return
        measured = events.staleness_by_worker(run.meter.take())
        if measured:
            run.reporter.emit("staleness", step=context.step, epoch=context.epoch, **measured)

    def waits(self, context: HookContext) -> None:
        """How long the workers waited for each other."""
        run = self._run
        if run.has_closures:
            run.reporter.emit("waits", step=context.step, epoch=context.epoch, **run.closures.facts())

    def epoch(self, context: HookContext) -> None:
        """The metrics and the speed of the epoch; warns once of undefined metrics."""
        run = self._run
        metrics = run.epoch.metrics
        seconds, rate = run.clock.epoch_ends(context.step, run.monitor)
        run.monitor.note_epoch(dict(context.metrics))  # to which the evaluation adds its own
        run.measure_step_time()
        virtual = {}
        if run.program.config.cluster.played_by and (times := run.closures.virtual_time()):
            virtual["virtual"] = times
        parts = keras.parts_of(run.program.optimizer)
        run.reporter.emit(
            "epoch",
            step=context.step,
            epoch=context.epoch,
            epochs=run.num_epochs,
            metrics=dict(metrics),
            **dict(zip(events.LEARNING_RATES, map(keras.present_learning_rate, parts))),
            seconds=round(seconds, 3),
            steps_per_s=rate,
            examples_per_s=rate * run.program.examples_per_step,
            step_time=asdict(run.step_time) if run.step_time else None,
            steps=run.steps,
            steps_repeated=run.steps_repeated,
            **virtual,
        )
        warning = undefined_warning(metrics, f"examples of epoch {context.epoch}")
        if warning is not None and not self._has_warned:
            self._has_warned = True
            run.warn(warning, step=context.step)


class Saves:
    """Takes the checkpoints that are due, and interrupts the training once they are complete."""

    def __init__(self, run: TrainingRun, schedule: CheckpointSchedule | None, checks: Checks, hooks: Hooks) -> None:
        self._run = run
        self._schedule = schedule
        self._checks = checks
        self._hooks = hooks
        self._is_due = False

    def check(self, context: HookContext) -> None:
        """Raises the error of a checkpoint that could not be written, as `CheckpointSchedule.check` does."""
        if self._schedule is not None:
            self._schedule.check()

    def within_epoch(self, context: HookContext) -> None:
        """Takes a checkpoint that is due before the last step of the epoch, when the steps so far are done.

        Raises:
          NonFiniteLossError: nothing is saved.
        """
        run = self._run
        self._is_due = self._schedule is not None and self._schedule.due(run.scheduled)
        if not self._is_due or not run.epoch.steps_left:
            return
        run.wait()
        with run.clock.paused():
            self._checks.mean_loss(context)
            self._save(run.program.iterations, within_epoch=True)
            run.monitor.goes_on()

    def cut_epoch(self, context: HookContext) -> None:
        """Takes the checkpoint of an epoch that was cut short since the process is to end; raises Interrupted."""
        if self._run.is_cut:
            self._save(context.step, within_epoch=True)
            self._complete()
            self._run.stop.raise_if_requested()

    def after_epoch(self, context: HookContext) -> None:
        """Takes the checkpoint that is due after an epoch. A request to end that comes later waits for the rest."""
        run = self._run
        is_last = run.epoch.decide_last()
        is_due = self._is_due
        if self._schedule is not None:
            is_due = is_due or self._schedule.due_after(context.epoch, last=is_last)
        self._is_due = False
        if is_due or run.stops:
            self._save(context.step, within_epoch=False)
            if run.stops:
                self._complete()
                run.epoch.interrupt()

    def before_hooks(self, context: HookContext) -> None:
        """Waits until the last checkpoint is complete, if a hook is called after this epoch."""
        if self._hooks.are_due(context.epoch):
            self._complete()

    def interrupt(self, context: HookContext) -> None:
        """Raises Interrupted if the process was asked to end before the checkpoint of this epoch was complete."""
        if self._run.epoch.is_interrupted:
            self._run.stop.raise_if_requested()

    def at_end(self, context: HookContext) -> None:
        """Takes the last checkpoint, and waits until it is complete.

        Raises:
          Interrupted: the trainer ended before its last epoch because of a signal.
        """
        run = self._run
        if context.step != run.first_step:
            self._save(context.step, within_epoch=False)
        self._complete()
        if run.stops and context.epoch < run.num_epochs and not run.ends_early:
            run.stop.raise_if_requested()  # asked while something else than steps was under way

    def _save(self, step: int, *, within_epoch: bool) -> None:
        if self._schedule is not None:
            self._run.monitor.begin("saving")
            self._schedule.save(step, self._run.position(within_epoch=within_epoch))

    def _complete(self) -> None:
        """Waits until the last checkpoint is complete."""
        if self._schedule is not None:
            self._run.monitor.begin("saving")
            self._schedule.wait()


class Evaluations:
    """Evaluates between epochs, or reports the evaluation of the trainer.

    Args:
      evaluator: None if this process evaluates nothing.
      schedule: of checkpoints; None if none are taken.
    """

    def __init__(self, run: TrainingRun, evaluator: Evaluator | None, schedule: CheckpointSchedule | None) -> None:
        self._run = run
        self._evaluator = evaluator
        self._schedule = schedule
        self._has_warned = False
        self._warned: set[str] = set()

    def after_epoch(self, context: HookContext) -> None:
        """Evaluates if it is due, unless the process is to end; adds the results to the metrics of the epoch."""
        run = self._run
        if run.epoch.validation is not None:
            examples_seen, metrics, seconds = run.epoch.validation
            self._report(Evaluation("validation", context.step, examples_seen, dict(metrics), seconds=seconds))
        is_due = run.epoch.is_last or run.program.config.evaluation.is_due(context.epoch)
        if self._evaluator is not None and is_due and not run.epoch.is_interrupted:
            self._evaluate(self._evaluator, context.step)

    def compare(self, context: HookContext) -> None:
        """Keeps the checkpoint of the step, if there is one, as the best if its metrics are the best."""
        if self._schedule is not None:
            self._schedule.evaluated(context.step, context.metrics)

    def catch_up(self, context: HookContext) -> None:
        """Does the evaluation of a training that was over already, if the process before this one did not get to it."""
        run = self._run
        is_over = run.start.epochs >= run.num_epochs or run.ends_early
        if self._evaluator is None or not is_over or run.scheduled:
            return
        if (run.folder.stored().get("evaluation") or {}).get("step") != run.first_step:
            self._evaluate(self._evaluator, run.first_step)
            if self._schedule is not None:
                self._schedule.evaluated(run.first_step, run.epoch.evaluation)

    def _evaluate(self, evaluator: Evaluator, step: int) -> None:
        self._run.monitor.begin("evaluating")
        self._report(evaluators.timed(evaluator, step, self._run.monitor.advance))

    def _report(self, evaluation: Evaluation) -> None:
        run = self._run
        run.reporter.emit("evaluation", **evaluation.recorded)
        num_examples = run.program.source.num_eval_examples
        if evaluation.examples_seen != num_examples and run.program.config.evaluation.is_exact:
            run.warn(f"evaluated {evaluation.examples_seen} examples, but the data source reports {num_examples}")
        if evaluation.undefined is not None and not self._has_warned:
            self._has_warned = True
            run.warn(evaluation.undefined, step=evaluation.step)
        for text in evaluation.warnings:
            if text not in self._warned:
                self._warned.add(text)
                run.warn(text, step=evaluation.step)
        run.monitor.note_evaluation(evaluation.values)
        run.epoch.take_evaluation(evaluation.values)


class ProfileWindow:
    """Begins and ends the profiles of all tasks at steps of the training, when no step runs.

    An execution of several steps is profiled whole: the profile begins before the one that contains the first step, and
    ends after the one that contains the last.

    Args:
      steps: the profile begins after the first, and ends after the second; counted over the whole run.
      topology: of a cluster of several processes; None for a single process.
    """

    def __init__(self, run: TrainingRun, steps: Sequence[int], topology: Topology | None) -> None:
        self._run = run
        self._first, self._last = steps
        self._name = f"steps-{self._first}-{self._last}"
        self._folder = run.folder.root.path
        is_chief = run.folder.root is run.folder  # others have their own training
        self._servers: list[Task] = []
        me = CHIEF
        if topology is not None:
            me = topology.me
            if is_chief and run.lockstep is None:
                self._servers = [*topology.servers()]
        self._own = profiles.OwnProfile(self._folder, me)
        self._done = run.first_step  # steps before the last piece
        self._began: int | None = None
        self._is_over = run.first_step >= self._last
        if is_chief:
            profiles.forget(self._folder)
            self._warn_of_the_end(run.monitor.planned)

    def before_epoch(self, context: HookContext) -> None:
        if self._is_due(self._run.first_step + self._run.scheduled):
            self._begin()

    def after_piece(self, context: HookContext) -> None:
        """Begins or ends the profile if it is due, once the steps so far are done."""
        run = self._run
        scheduled = run.first_step + run.scheduled
        ends = self._began is not None and scheduled >= self._last
        if not ends and not self._is_due(scheduled):
            self._done = scheduled
            return
        self._done = scheduled
        run.wait()
        with run.clock.paused():
            if ends:
                self._end()
            else:
                self._begin()
            run.monitor.goes_on()

    def at_end(self, context: HookContext) -> None:
        """Ends a profile that goes beyond the last step."""
        if self._began is not None:
            self._end()

    def close(self) -> None:
        """Ends the profile of a training that fails or is interrupted; waits for no other task."""
        if self._began is None:
            return
        self._began = None
        try:
            profiles.ask(self._folder, self._name, runs=False)
            self._own.stop()
        except Exception as error:  # what ended the training matters more
            self._run.warn(f"profile.steps: the profile could not be written: {error}")

    def _is_due(self, scheduled: int) -> bool:
        """Whether the next execution, which is as long as the last one, may have steps to profile."""
        if self._began is not None or self._is_over or scheduled >= self._run.monitor.planned:
            return False
        next_steps = max(1, scheduled - self._done)
        return scheduled + next_steps > self._first

    def _begin(self) -> None:
        self._is_over = True  # there is one
        try:
            if self._servers:
                profiles.ask(self._folder, self._name, runs=True)
            self._own.start(self._name)
        except Exception as error:  # such as a profiler of a callback that runs
            self._run.warn(f"profile.steps: nothing is profiled: {error}")
            return
        self._began = self._run.first_step + self._run.scheduled
        self._report_missing(self._wait(runs=True, within_s=_START_WITHIN_S), "is not profiled")

    def _end(self) -> None:
        began, self._began = self._began, None
        run = self._run
        try:
            if self._servers:
                profiles.ask(self._folder, self._name, runs=False)
            self._own.stop()
        except Exception as error:
            run.warn(f"profile.steps: the profile could not be written: {error}")
            return
        self._report_missing(self._wait(runs=False, within_s=_WRITE_WITHIN_S), "has not written its profile")
        if run.folder.root is run.folder:
            folder = profiles.folder_of(self._folder, self._name)
            tasks = sorted(file.name.partition(".")[0] for file in folder.glob("*.xplane.pb"))
            ended = run.first_step + run.scheduled
            run.reporter.emit("profile", step=ended, path=str(folder), steps=[began, ended], tasks=tasks)

    def _wait(self, *, runs: bool, within_s: float) -> dict[Task, str]:
        return profiles.wait(
            self._folder, self._name, self._servers, runs=runs, within_s=within_s, on_wait=self._run.monitor.advance
        )

    def _report_missing(self, missing: dict[Task, str], what: str) -> None:
        for task, reason in sorted(missing.items()):
            self._run.warn(f"profile.steps: {task} {what}: {reason}")

    def _warn_of_the_end(self, planned: int) -> None:
        given = f"profile.steps: [{self._first}, {self._last}]"
        if self._first >= planned:
            self._run.warn(f"{given} begins after the last step, {planned}; nothing is profiled")
        elif self._last > planned:
            self._run.warn(f"{given} ends after the last step, {planned}; the profile ends there")
