"""Evaluation by the coordinator: it reads the variables and runs the model on the whole evaluation set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tf_keras

from psrun.program.compiled_model import Program
from psrun.program.evaluation_sizes import num_eval_batches
from psrun.tf_internals.tracing import unconverted
from psrun.training.evaluation.meters import Evaluation, Meters


class DirectEvaluation:
    """Evaluates a program in this process, between epochs.

    Args:
      callbacks: called as by `Model.evaluate`: `on_test_begin`, around each batch, `on_test_end`. Their logs have the
        metrics that are defined by their own names, without `val_`.
    """

    def __init__(self, program: Program, callbacks: Sequence[tf_keras.callbacks.Callback] = ()) -> None:
        self._meters = Meters(program)  # not in the strategy's scope: variables of this process
        self._mode = program.config.evaluation.kind
        self._network = program.network
        self._own = list(callbacks)
        self._num_batches = num_eval_batches(program.config, program.source)
        self._dataset = program.measured_examples
        self._step = self._batch
        if not program.config.trainer.run_eagerly:
            # Traced now: a trace is sent to all workers under Python's GIL, and a hung worker would stop all threads.
            self._step = unconverted(self._batch).get_concrete_function(self._dataset.element_spec)

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over all evaluation examples, each counted once; `step` is the current step of the training.

        Args:
          progress: called after each batch.
        """
        self._meters.reset()
        called = tf_keras.callbacks.CallbackList(
            self._own, model=self._network, verbose=0, epochs=1, steps=self._num_batches
        )
        called.on_test_begin()
        for index, batch in enumerate(self._dataset):
            called.on_test_batch_begin(index)
            self._meters.keep(self._step(batch))
            if self._own:  # reading the metrics takes time
                called.on_test_batch_end(index, _defined(self._meters.values()))
            progress()
        evaluation = self._meters.result(self._mode, step, progress)
        called.on_test_end(_defined(evaluation.metrics))
        return evaluation

    def _batch(self, batch: tuple[Any, ...]) -> Any:
        measured = self._meters.measure(batch)
        self._meters.update(measured)
        return self._meters.rows(measured)


def _defined(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}
