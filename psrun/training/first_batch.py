"""Checks the predictions of the model for the first training batch."""

from __future__ import annotations

from psrun.program import objective
from psrun.program.compiled_model import Program, traced_forward


class FirstBatch:
    """Checks that predictions are probabilities, if the last layer of the model does not show it.

    This process computes them, outside of the steps. Nothing is checked if the model has its own `train_step` and there
    is no evaluation: then none of psrun's losses and metrics reads them.
    """

    def __init__(self, program: Program) -> None:
        self._features, self._forward = None, None
        is_read = program.own_step is None or program.config.evaluation.runs_on is not None
        if is_read and program.may_be_logits:
            self._features = next(iter(program.first_batches))[0]
            self._forward = traced_forward(program)

    def check(self) -> None:
        """Call when no step runs.

        Raises:
          ConfigError: some predictions are outside of [0, 1].
        """
        if self._forward is None:
            return
        count = int(objective.num_outside(self._forward(self._features)))
        if count:
            raise objective.outside_error(count, "the first batch")
