"""Work around the epochs of a training, the same for every trainer: times, events, checkpoints, evaluation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import tensorflow as tf

from psrun.checkpoint.manifest import Position
from psrun.closures.asynchronous_steps import Packed
from psrun.closures.audit import Audit
from psrun.closures.input_streams import Stream
from psrun.closures.step_profiler import StepProfiler, StepTime, step_time
from psrun.closures.training_closures import TrainingClosures
from psrun.errors import DataExhaustedError, NonFiniteLossError
from psrun.process import Stop
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.training.checkpoint_schedule import CheckpointSchedule
from psrun.training.epoch_clock import Clock
from psrun.training.evaluation.after_epochs import EpochEvaluations
from psrun.training.evaluation.meters import Evaluation, undefined_warning
from psrun.training.evaluation.modes import Evaluator
from psrun.training.first_batch import FirstBatch
from psrun.training.hooks import Hooks
from psrun.training.input_position import InputPosition
from psrun.training.metric_policies import MetricPolicies
from psrun.training.progress import ProgressMonitor, iterations
from psrun.training.synchronized_stop import SynchronizedStop
from psrun.training.update_staleness import UpdateStaleness


class Session:
    """Called by a trainer when an epoch begins, when its steps are joined, and when it ends.

    It does not drive the trainer as a generator of epochs: Keras' `fit` and loops of users call it from within.

    Args:
      evaluation: None if this process evaluates nothing.
      saving: None if no checkpoints are saved.
      following: receives the metrics of epochs and evaluations.
      folder: the run folder, which records the results.
      start: the position from which the training continues; the program's variables have the values of that position.
      hooks: callbacks of the user.
      stop: called between executions; returns whether to stop early.
      lockstep: set if other processes apply the same steps.

    Attributes:
      scheduled: number of steps scheduled by this process.
      left: number of steps to apply when the session began.
      warn: reports a warning.
      staleness: of the updates.
      step_time: the stages of a step up to the last join; None if they are not measured.
    """

    def __init__(
        self,
        program: Program,
        reporter: Reporter,
        *,
        evaluation: Evaluator | None,
        saving: CheckpointSchedule | None,
        following: MetricPolicies,
        folder: RunFolder,
        start: Position,
        stop: Stop,
        hooks: Hooks,
        lockstep: SynchronizedStop | None = None,
    ) -> None:
        self.program, self._reporter, self._folder, self.warn = program, reporter, folder, reporter.warn
        self._saving, self._following, self._hooks = saving, following, hooks
        self.start, self.stop, self.lockstep = start, stop, lockstep
        self.first_step = iterations(program)
        trainer = program.config.trainer
        self.left = max(0, (trainer.num_epochs - start.epochs) * trainer.num_steps - start.steps)
        self.monitor = ProgressMonitor(
            program, reporter, first_step=self.first_step, planned=start.scheduled + self.left
        )
        self._evaluations = EpochEvaluations(program, reporter, evaluation, self.monitor)
        self.clock = Clock(self.first_step)
        self.scheduled = 0
        self._audit = Audit(program, start.audit) if program.config.data.audit else None
        self._stages: StepProfiler | None = None
        self.staleness = UpdateStaleness(program, reporter)
        self.step_time: StepTime | None = None
        self._epoch, self._into = start.epochs, start.steps
        self._uncounted = start.steps if start.audit is None else 0  # of its first epoch, by the audit
        self._due = False
        self._told_undefined = False
        self._feeds = InputPosition(program, start, self.first_step, self._audit)
        self._first_batch = FirstBatch(program)
        self._first_batch.check()

    @property
    def steps(self) -> dict[str, int]:
        """Steps of the whole run. Those that earlier processes applied may include repeated ones."""
        applied = self.monitor.last_step
        scheduled = self.start.scheduled + self.scheduled
        return {"applied": applied, "scheduled": scheduled, "repeated": max(0, applied - scheduled)}

    @property
    def steps_repeated(self) -> int:
        """Steps applied more often than scheduled, in this process: a worker died after its step was applied."""
        return max(0, self.monitor.last_step - self.first_step - self.scheduled)

    def catch_up(self) -> None:
        """Does the evaluation of a training that was over already, if the process before this one did not get to it."""
        evaluated = (self._folder.stored().get("evaluation") or {}).get("step")
        if self._evaluations.run_here and self.scheduled == 0 and evaluated != self.first_step:
            self._compare(self.first_step, self._evaluations.run(self.first_step))

    def feed(self) -> Stream:
        """Where the steps on workers get their batches, from here on."""
        return self._feeds.on_workers(self.scheduled)

    def train_dataset(self) -> Callable[..., tf.data.Dataset]:
        """Makes the training data from here on, in this process."""
        return self._feeds.dataset(self.scheduled)

    def stages(self) -> StepProfiler:
        """The profiler that measures where the time of steps on workers goes."""
        self._stages = StepProfiler(self.program)
        return self._stages

    @functools.cached_property
    def closures(self) -> TrainingClosures:
        """The closures of steps, on the workers of a coordinator."""
        mode = self.program.config.consistency
        return mode.load()(self.program.distribution, mode)

    def ends_epoch(self) -> bool:
        """Whether the next step is the last one of the epoch."""
        return self._into + 1 == self.program.config.trainer.num_steps

    def packed(self, packed: Packed) -> None:
        """Call when it is known how many steps an execution has."""
        report = self._folder.record if packed.step_s is None else self._reporter.emit
        report("packing", step=self.monitor.last_step, **asdict(packed))

    def epoch_begins(self) -> None:
        """Call before the first step of each epoch is scheduled."""
        self._set_rate()
        self._epoch, self._due = self._epoch + 1, False
        self.staleness.begin()
        self.clock.epoch_begins()
        self.monitor.epoch_begins(self._epoch)

    def _set_rate(self) -> None:
        """Lowers the learning rate for the next epoch: half a cosine wave over all epochs (Loshchilov, Hutter: "SGDR",
        2017), in steps of an epoch."""
        config = self.program.config
        if config.learning_rate_falls:
            share = (self._epoch + 0.5) / config.trainer.num_epochs
            rate = config.optimizer.options["learning_rate"] * (1 + math.cos(math.pi * share)) / 2
            self.program.optimizer.learning_rate = rate

    def steps_scheduled(self, num_steps: int) -> bool:
        """Call when steps were scheduled; returns whether to join them now, for `save`."""
        self.scheduled += num_steps
        self._into += num_steps
        self._due = self._saving is not None and self._saving.due(self.scheduled)
        return self._due and self._into < self.program.config.trainer.num_steps

    def save(self) -> None:
        """Takes a checkpoint within an epoch. Call when every step scheduled so far is done.

        Raises:
          NonFiniteLossError: the loss is NaN or infinite; nothing is saved.
        """
        with self.clock.paused():
            self._loss_is(self.monitor.loss() or 0.0)
            self._save(iterations(self.program), self._epoch - 1)
            self.staleness.begin()
            self.monitor.goes_on()

    def steps_joined(self) -> None:
        """Call when every step of the epoch is done, before anything else is."""
        self.clock.steps_joined()
        self.monitor.epoch_ends(iterations(self.program))
        cut = self._into < self.program.config.trainer.num_steps and self._stops()  # the resumed run counts on
        if self._audit is not None and not cut:
            visitation = {"epoch": self._epoch, "steps": self._into - self._uncounted, **self._audit.epoch()}
            self._reporter.emit("visitation", step=self.monitor.last_step, **visitation)
        self.staleness.epoch_joined(self.monitor.last_step, self._epoch)
        self._uncounted = 0
        if "closures" in vars(self):
            self._reporter.emit("waits", step=self.monitor.last_step, epoch=self._epoch, **self.closures.facts())

    def check(self) -> None:
        """Raises NonFiniteLossError once the monitor has seen the loss go, and HookError once a hook has failed."""
        self._hooks.check()
        if self.monitor.non_finite_loss is not None:
            self._loss_is(self.monitor.non_finite_loss)

    def epoch_ends(
        self, metrics: Mapping[str, float | None], validation: tuple[int, Mapping[str, float | None]] | None = None
    ) -> dict[str, float]:
        """Reports the epoch, takes the checkpoint and evaluates, as configured.

        Args:
          metrics: of the epoch's training steps; None for undefined ones.
          validation: examples seen and metrics, None for undefined ones, where the trainer itself has evaluated.

        Returns:
          The evaluation's metrics as `val_*`, without undefined ones; empty where there was none.

        Raises:
          NonFiniteLossError: the loss is NaN or infinite.
          DataExhaustedError: fewer steps were applied than scheduled.
          Interrupted: the epoch was cut short because the process is to end; its steps are in a checkpoint.
        """
        step = iterations(self.program)
        defined = {name: value for name, value in metrics.items() if value is not None}
        self._check_loss(defined)
        if self._stops() and self._into < self.program.config.trainer.num_steps:
            self._save(step, self._epoch - 1)
            self.stop.raise_if_requested()
        self._report_epoch(step, metrics)
        warning = undefined_warning(metrics, f"examples of epoch {self._epoch}")
        if warning is not None and not self._told_undefined:
            self._told_undefined = True
            self.warn(warning, step=step)
        self._following.take(step, defined)
        self._following.note(step)  # before the checkpoint, which has the learning rate that was decided on
        self._check_steps(step)
        self._into = 0
        last = self._epoch == self.program.config.trainer.num_epochs or self.ends_early
        saves = bool(self._stops() or self._due or (self._saving and self._saving.due_after(self._epoch, last=last)))
        if saves:
            self._save(step, self._epoch)
        stops = saves and self._stops()  # a later request waits until everything is saved
        val_metrics = {}
        if validation is not None:
            examples_seen, values = validation
            val_metrics = self._evaluations.report(Evaluation("validation", step, examples_seen, dict(values)))
        if not stops and self._evaluations.due_after(self._epoch, last=last):
            val_metrics = self._evaluations.run(step)
        self._compare(step, {**defined, **val_metrics})
        self._following.take(step, val_metrics)
        self._following.epoch_ended(step)
        self._hooks.epoch_ended(step, self._epoch, {**defined, **val_metrics})
        if stops:
            self.stop.raise_if_requested()
        return val_metrics

    def _check_loss(self, metrics: Mapping[str, float]) -> None:
        """Raises NonFiniteLossError; also checks what the network returns, after the first epoch."""
        self._loss_is(metrics.get("loss", 0.0))
        if self.program.own_step is not None:  # whose loss is that of the last step
            self._loss_is(self.monitor.loss() or 0.0)
        if self._epoch == self.start.epochs + 1:
            self._first_batch.check()  # with the weights that it began with, they may all have been 0 to 1

    def _check_steps(self, step: int) -> None:
        """Raises DataExhaustedError if an epoch is over before all of its steps."""
        trainer = self.program.config.trainer
        cut = self._into < trainer.num_steps and not self.program.network.stop_training
        if trainer.has_fixed_epochs and (cut or step - self.first_step < self.scheduled):
            # Keras only warns of data that ends; steps may be run twice, but never fewer than were scheduled.
            raise DataExhaustedError.at(step, self.first_step + self.scheduled + trainer.num_steps - self._into)

    @property
    def ends_early(self) -> bool:
        """Whether an evaluation has requested to stop before the next epoch."""
        return self.lockstep is None and self._folder.whole.ends_early()  # else processes would stop at different steps

    def training_ends(self) -> None:
        """Saves the last checkpoint. Call when the trainer is done, perhaps before the last epoch.

        Raises:
          Interrupted: the trainer stopped early because of a signal.
        """
        step = iterations(self.program)
        if step != self.first_step:
            self._save(step, self._epoch)
        if self._stops() and self._epoch < self.program.config.trainer.num_epochs and not self.ends_early:
            self.stop.raise_if_requested()  # asked while something else than steps was under way

    def _stops(self) -> bool:
        """Whether this process is to end now: one of many that do the same steps ends where all of them do."""
        return self.stop.requested.is_set() if self.lockstep is None else self.lockstep.agreed

    def _save(self, step: int, epochs: int) -> None:
        if self._saving is not None:
            self.monitor.state = "saving"
            scheduled = self.start.scheduled + self.scheduled
            batch, order, again = self._feeds.next_batch(self.scheduled), self.start.order, self._feeds.left
            numbered = (batch, order, again, self.program.gradients_per_update)
            audit = self._audit.state() if self._audit is not None and self._into else None
            self._saving.save(step, Position(epochs, self._into, scheduled, self._feeds.stream, *numbered, audit))

    def _compare(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._saving is not None:
            self._saving.evaluated(step, metrics)

    def _report_epoch(self, step: int, metrics: Mapping[str, float | None]) -> None:
        seconds, rate = self.clock.epoch_ends(step, self.monitor)
        self.monitor.metrics = {name: value for name, value in metrics.items() if name != "loss" and value is not None}
        self._reporter.emit(
            "epoch", step=step, epoch=self._epoch, epochs=self.program.config.trainer.num_epochs, metrics=dict(metrics),
            seconds=round(seconds, 3), steps_per_s=rate, examples_per_s=rate * self.program.examples_per_step,
            step_time=self._step_time(), steps=self.steps, steps_repeated=self.steps_repeated,
        )  # fmt: skip

    def _step_time(self) -> dict[str, Any] | None:
        rate = self.clock.rate()
        if self._stages is not None and rate:
            self.step_time = step_time(self._stages.measured(), self.program.distribution.num_workers / rate)
        return asdict(self.step_time) if self.step_time else None

    def _loss_is(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise NonFiniteLossError.of_loss(loss, self._epoch)
