"""Detects that a metric no longer improves, for early stopping and reduce_lr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psrun.config.run_config import EarlyStopping


class Plateau:
    """Counts consecutive evaluations without an improvement.

    The rule is that of `tf_keras.callbacks.EarlyStopping` and `ReduceLROnPlateau` (there with `cooldown=0`).

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
            self.best, self.waited = state["best"], state["waited"]
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
            self.best, self.waited = value, 0
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
