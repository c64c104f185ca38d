"""Looks at what the model predicts for the first batch of the training data."""

from __future__ import annotations

from psrun.program import objective
from psrun.program.compiled_model import Program, traced_forward


class FirstBatch:
    """Predictions of a model whose outputs could be logits where loss and metrics take probabilities.

    Only those of a model whose last layer leaves that open are computed, by this process, outside of the steps. Where
    the model has a `train_step` and nothing is evaluated, no loss or metric of psrun's reads them.
    """

    def __init__(self, program: Program) -> None:
        self._features, self._forward = None, None
        read = program.own_step is None or program.config.evaluation.runs_on is not None
        if read and program.may_be_logits:
            self._features = next(iter(program.train_dataset()))[0]
            self._forward = traced_forward(program)

    def check(self) -> None:
        """Call when no step runs.

        Raises:
          ConfigError: some of the predictions are no probabilities.
        """
        if self._forward is None:
            return
        count = int(objective.num_outside(self._forward(self._features)))
        if count:
            raise objective.outside_error(count, "the first batch")
