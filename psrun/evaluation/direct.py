"""Evaluation by the coordinator itself: it reads the variables and runs the model over the whole evaluation set."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from psrun.evaluation.meters import Evaluation, Meters
from psrun.program import Program


class DirectEvaluation:
    """Evaluates a program in this process, between epochs.

    Args:
      mode: what the evaluation is called; where there are no workers, this is also the way to be `exact`.
    """

    def __init__(self, program: Program, mode: str = "direct") -> None:
        self._mode = mode
        # Made outside the strategy's scope, so that their variables are here and not on a parameter server.
        self._meters = Meters(program)
        self._dataset = program.evaluation_dataset()
        self._step = self._batch
        if not program.config.trainer.run_eagerly:
            # Traced now: a trace is told to all workers with Python's lock held, and one that hangs would stop all.
            self._step = tf.function(self._batch).get_concrete_function(*self._dataset.element_spec)

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over every evaluation example, once each; `step` is what the training has reached.

        Args:
          progress: called after each batch.
        """
        self._meters.reset()
        for features, label in self._dataset:
            self._step(features, label)
            progress()
        return self._meters.found(self._mode, step)

    def _batch(self, features: dict[str, tf.Tensor], label: tf.Tensor) -> None:
        self._meters.update(label, *self._meters.measure(features, label))
