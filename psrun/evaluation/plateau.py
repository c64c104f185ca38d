"""Whether a metric has stopped becoming better: the rule behind early stopping and lowering the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psrun.config.run_config import EarlyStopping


class Plateau:
    """Counts evaluations in a row without a better one.

    The rule is that of `tf_keras.callbacks.EarlyStopping` and `ReduceLROnPlateau` (there with `cooldown=0`).

    Attributes:
      best: the best value so far; None before the first.
      waited: evaluations since then.
    """

    def __init__(self, rule: EarlyStopping) -> None:
        self.rule = rule
        self.best: float | None = None
        self.waited = 0

    @property
    def reason(self) -> str:
        """What it means that the plateau is reached."""
        times = "1 evaluation" if self.rule.patience == 1 else f"{self.rule.patience} evaluations"
        return f"{self.rule.metric} has not improved in {times}"

    @property
    def state(self) -> dict[str, Any]:
        """What `restore` takes, in values that JSON knows."""
        return {"rule": self._counts, "best": self.best, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state, where it is one of the same metric, compared in the same way; returns whether it is."""
        same = state["rule"] == self._counts
        if same:
            self.best, self.waited = state["best"], state["waited"]
        return same

    @property
    def _counts(self) -> list[Any]:
        return [self.rule.metric, self.rule.mode, self.rule.min_delta]

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Takes in one evaluation; whether patience has run out with it, after which it is counted anew.

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
