"""Early stopping and learning rate reduction, by the evaluations of the training process and of the evaluator."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from psrun import files
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.program.monitored import check_metric
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.training.evaluation import meters
from psrun.training.evaluation.plateau import Plateau

_FILE = "following.json"
_RECORDS_KEPT = 100  # one per epoch: more than anybody keeps checkpoints


class MetricPolicies:
    """Applies early stopping and learning rate reduction to one training.

    The state after each epoch is in a file of the run folder, so that a training that resumes from a checkpoint has the
    patience and the learning rate of that moment. The evaluator task itself stops the training for its own metrics.

    Args:
      program: its optimizer must have the configured learning rate: create this object before restoring a checkpoint.

    Raises:
      ConfigError: the run has no such metric, or the learning rate is a schedule.
    """

    def __init__(self, program: Program, reporter: Reporter, folder: RunFolder) -> None:
        config = program.config
        self._optimizer, self._reporter, self._folder = program.optimizer, reporter, folder
        self._stopping, self._lowering = Plateau(config.early_stopping), Plateau(config.reduce_lr)
        self._lower = config.reduce_lr
        for key, rule in (("early_stopping", config.early_stopping), ("reduce_lr", config.reduce_lr)):
            if rule.metric is not None:
                check_metric(f"{key}.metric", rule.metric, program)
        by_evaluator = config.evaluation.runs_on == "evaluator"
        self._evaluator = config.evaluation.kind if by_evaluator and self._lower.metric is not None else None
        self._stops_elsewhere = by_evaluator and (config.early_stopping.metric or "").startswith("val_")
        self._configured = self._changeable_rate() if self._lower.metric is not None else None
        self._records: list[dict[str, Any]] = []
        self._seen: set[str] = set()  # checkpoints whose evaluation by the evaluator was processed

    def _changeable_rate(self) -> float:
        try:
            rate = float(self._optimizer.learning_rate)
            self._optimizer.learning_rate = rate
            return rate
        except TypeError:
            message = "requires a number as learning rate, but the optimizer has a schedule"
            raise ConfigError([Problem("reduce_lr.metric", message)]) from None

    def go_on(self, step: int) -> None:
        """Restores the state of `step`. Call when its variables were restored."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            records = json.loads((self._folder.path / _FILE).read_text(encoding="utf-8"))
            self._records = [record for record in records if record["step"] <= step]
        last = self._records[-1] if self._records else {}
        self._seen = set(last.get("seen", ()))
        # Ignore evaluations of later checkpoints: the run takes those checkpoints again, with other values.
        self._seen |= {checkpoint for evaluation, checkpoint in self._by_evaluator() if evaluation.step > step}
        if last.get("stopping"):
            self._stopping.restore(last["stopping"])
        if last.get("configured") == self._configured is not None and self._lowering.restore(last["lowering"]):
            self._optimizer.learning_rate = last["rate"]

    def take(self, step: int, metrics: Mapping[str, float]) -> None:
        """Processes the metrics of an epoch or of an evaluation. Call when no step runs.

        Raises:
          OSError: training must stop, but the file that requests it cannot be written.
        """
        if not self._stops_elsewhere and self._stopping.reached(metrics):
            reason = self._stopping.reason
            self._folder.whole.end_early(reason)
            self._reporter.warn(f"{reason}: stopping training", step=step)
        if self._lowering.reached(metrics):
            before = float(self._optimizer.learning_rate)
            after = max(min(before, self._lower.min_lr), before * self._lower.factor)
            if after < before:
                self._optimizer.learning_rate = after
                self._reporter.emit(
                    "learning_rate", step=step, value=after, before=before, reason=self._lowering.reason
                )

    def epoch_ended(self, step: int) -> None:
        """Processes new evaluations of the evaluator, and saves the state.

        Raises:
          OSError: the run folder cannot be written to.
        """
        for evaluation, checkpoint in self._by_evaluator():
            if checkpoint not in self._seen:
                self._seen.add(checkpoint)
                self.take(step, evaluation.values)
        self.note(step)

    def note(self, step: int) -> None:
        """Saves the state at a step; raises OSError."""
        if self._stopping.rule.metric is None and self._lower.metric is None:
            return
        now: dict[str, Any] = {"step": step, "stopping": self._stopping.state, "lowering": self._lowering.state}
        if self._configured is not None:
            now |= {"configured": self._configured, "rate": float(self._optimizer.learning_rate)}
        before = [record for record in self._records if record["step"] != step]
        self._records = [*before[1 - _RECORDS_KEPT :], {**now, "seen": sorted(self._seen)}]
        files.write_atomic(self._folder.path / _FILE, json.dumps(self._records) + "\n")

    def _by_evaluator(self) -> list[tuple[meters.Evaluation, str]]:
        """The evaluations of the evaluator, if a policy needs them."""
        return list(meters.kept(self._folder.whole.evaluations, self._evaluator)) if self._evaluator else []
