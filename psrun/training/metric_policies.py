"""Learning rates that fall, and early stopping, by the evaluations of the training process and of the evaluator."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from math import cos, pi
from typing import Any

from psrun import files
from psrun.config.run_config import EarlyStopping
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program, check_monitored_metric
from psrun.results.events import Reporter
from psrun.results.run_folder import FOLLOWING, RunFolder
from psrun.tf_internals import keras
from psrun.training import evaluators
from psrun.training.hooks import HookContext

_RECORDS_KEPT = 100  # one per epoch: more than anybody keeps checkpoints


class Plateau:
    """Counts consecutive evaluations without an improvement.

    `tf_keras.callbacks.EarlyStopping` and `ReduceLROnPlateau` (with `cooldown=0`) have the same rule.

    Attributes:
      best: the best value so far; None before the first.
      waited: number of evaluations since then.
    """

    def __init__(self, rule: EarlyStopping) -> None:
        self.rule = rule
        self.best: float | None = None
        self.waited = 0

    @property
    def reason(self) -> str:
        """The message for a reached plateau."""
        times = "1 evaluation" if self.rule.patience == 1 else f"{self.rule.patience} evaluations"
        return f"{self.rule.metric} has not improved in {times}"

    @property
    def state(self) -> dict[str, Any]:
        """The state for `restore`, as JSON values."""
        return {"rule": self._counts, "best": self.best, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Restores a state of the same metric and mode; returns whether it was one."""
        same = state["rule"] == self._counts
        if same:
            self.best = state["best"]
            self.waited = state["waited"]
        return same

    @property
    def _counts(self) -> list[Any]:
        return [self.rule.metric, self.rule.mode, self.rule.min_delta]

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Processes one evaluation; returns whether patience has run out, and then resets the count.

        An evaluation without the metric does not count; NaN is never better.
        """
        value = metrics.get(self.rule.metric or "")
        if value is None:
            return False
        if self._better(value):
            self.best = value
            self.waited = 0
            return False
        self.waited += 1
        if self.waited < self.rule.patience:
            return False
        self.waited = 0
        return True

    def _better(self, value: float) -> bool:
        if self.best is None:
            return value == value
        gain = value - self.best if self.rule.mode == "max" else self.best - value
        return gain > self.rule.min_delta


def metric_policies(program: Program, reporter: Reporter, folder: RunFolder) -> MetricPolicies:
    """The early stopping and the learning rate reduction that are configured.

    Args:
      program: its optimizers must have the configured learning rate: call this before a checkpoint is restored.

    Raises:
      ConfigError: the run has no such metric, or the learning rate is a schedule.
    """
    config = program.config
    if config.early_stopping.metric is not None:
        check_monitored_metric("early_stopping.metric", config.early_stopping.metric, program)
    configured = None
    if config.reduce_lr.metric is not None:
        check_monitored_metric("reduce_lr.metric", config.reduce_lr.metric, program)
        parts = keras.parts_of(program.optimizer)
        configured = [[type(part).__name__, _changeable_rate(part)] for part in parts]
    return MetricPolicies(program, reporter, folder, configured)


def _changeable_rate(optimizer: Any) -> float:
    """The learning rate of the optimizer, which is a number from now on."""
    try:
        rate = float(optimizer.learning_rate)
        optimizer.learning_rate = rate
    except TypeError:
        message = "requires a number as learning rate, but the optimizer has a schedule"
        raise ConfigError([Problem("reduce_lr.metric", message)]) from None
    return rate


def _rates(recorded: Any) -> list[Any]:
    """The recorded learning rates; earlier versions recorded the only one."""
    return recorded if isinstance(recorded, list) else [recorded]


class MetricPolicies:
    """Applies early stopping and learning rate reduction to one training.

    The state after each epoch is in a file of the run folder, so that a training that resumes from a checkpoint has the
    patience and the learning rate of that moment. The evaluator task itself stops the training for its own metrics.

    Args:
      configured: the classes and the configured learning rates of `keras.parts_of`, if these may be lowered; None
        otherwise.
    """

    def __init__(self, program: Program, reporter: Reporter, folder: RunFolder, configured: list[Any] | None) -> None:
        config = program.config
        self._optimizers = keras.parts_of(program.optimizer)
        self._reporter = reporter
        self._folder = folder
        self._configured = configured
        self._stopping = Plateau(config.early_stopping)
        self._lowering = Plateau(config.reduce_lr)
        self._lower = config.reduce_lr
        by_evaluator = config.evaluation.runs_on == "evaluator"
        self._stops_elsewhere = by_evaluator and (config.early_stopping.metric or "").startswith("val_")
        self._evaluator: str | None = None  # whose evaluations lower the rate
        if by_evaluator and config.reduce_lr.metric is not None:
            self._evaluator = config.evaluation.kind
        self._records: list[dict[str, Any]] = []
        self._seen: set[str] = set()  # checkpoints whose evaluation by the evaluator was processed
        self._of_training: set[str] = set()

    def go_on(self, step: int) -> None:
        """Restores the state of `step`. Call when its variables were restored."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            records = json.loads((self._folder.path / FOLLOWING).read_text(encoding="utf-8"))
            self._records = [record for record in records if record["step"] <= step]
        last = self._records[-1] if self._records else {}
        self._seen = set(last.get("seen", ()))
        # Ignore evaluations of later checkpoints: the run takes those checkpoints again, with other values.
        for evaluation, checkpoint in self._by_evaluator():
            if evaluation.step > step:
                self._seen.add(checkpoint)
        if last.get("stopping"):
            self._stopping.restore(last["stopping"])
        before = zip(_rates(last.get("configured")), _rates(last.get("rate")))
        for optimizer, configured, (same, rate) in zip(self._optimizers, self._configured or (), before):
            if configured == same and self._lowering.restore(last["lowering"]):
                optimizer.learning_rate = rate

    def lower_rate(self, context: HookContext) -> None:
        """Lowers the learning rate for an epoch: half a cosine wave over all epochs (Loshchilov, Hutter: "SGDR", 2017),
        in steps of an epoch.
        """
        config = context.program.config
        if not config.learning_rate_falls:
            return
        for target, optimizer in zip(config.optimizers, self._optimizers):
            if target.key in config.chosen_rates:
                share = (context.epoch - 0.5) / config.trainer.num_epochs
                optimizer.learning_rate = target.options["learning_rate"] * (1 + cos(pi * share)) / 2

    def after_training(self, context: HookContext) -> None:
        """Processes the metrics of an epoch, and saves the state.

        Raises:
          OSError: the run folder cannot be written to.
        """
        self._of_training = set(context.metrics)
        self._take(context.step, context.metrics)
        self._save(context.step)

    def after_evaluation(self, context: HookContext) -> None:
        """Processes the metrics of the evaluation, and new evaluations of the evaluator task; saves the state.

        Raises:
          OSError: the run folder cannot be written to.
        """
        metrics = context.metrics
        self._take(context.step, {name: metrics[name] for name in metrics if name not in self._of_training})
        for evaluation, checkpoint in self._by_evaluator():
            if checkpoint not in self._seen:
                self._seen.add(checkpoint)
                self._take(context.step, evaluation.values)
        self._save(context.step)

    def _take(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._stops_elsewhere and self._stopping.reached(metrics):
            reason = self._stopping.reason
            self._folder.root.end_early(reason)
            self._reporter.emit("early_stopping", step=step, reason=reason)
        if self._lowering.reached(metrics):
            for key, optimizer in zip(("", "table_optimizer: "), self._optimizers):
                before = float(optimizer.learning_rate)
                after = max(min(before, self._lower.min_lr), before * self._lower.factor)
                if after < before:
                    optimizer.learning_rate = after
                    reason = f"{key}{self._lowering.reason}"
                    self._reporter.emit("learning_rate", step=step, value=after, before=before, reason=reason)

    def _save(self, step: int) -> None:
        if self._stopping.rule.metric is None and self._lower.metric is None:
            return
        now: dict[str, Any] = {"step": step, "stopping": self._stopping.state, "lowering": self._lowering.state}
        if self._configured is not None:
            rates = [float(optimizer.learning_rate) for optimizer in self._optimizers]
            now |= {"configured": self._configured, "rate": rates}
        before = [record for record in self._records if record["step"] != step]
        self._records = [*before[1 - _RECORDS_KEPT :], {**now, "seen": sorted(self._seen)}]
        files.write_atomic(self._folder.path / FOLLOWING, json.dumps(self._records) + "\n")

    def _by_evaluator(self) -> list[tuple[evaluators.Evaluation, str]]:
        """The evaluations of the evaluator, if a policy needs them."""
        if self._evaluator is None:
            return []
        return list(evaluators.kept_evaluations(self._folder.root.evaluations, self._evaluator))
