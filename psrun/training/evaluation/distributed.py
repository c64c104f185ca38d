"""Evaluation on the workers as in TensorFlow's tutorial: batches are scheduled, each at least once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.closures.training_closures import InFlightClosures
from psrun.program.compiled_model import Program
from psrun.program.evaluation_sizes import num_eval_batches
from psrun.tf_internals.cluster import iterator_spec, per_worker_iterator
from psrun.training.evaluation.meters import Evaluation, Meters


class DistributedEvaluation:
    """Evaluates a program on its workers, between epochs, when no step runs.

    It schedules as many batches as the evaluation set has. Each worker reads the whole set repeatedly, from a different
    position, so that some examples are seen several times and some not at all, also where the number of examples seen,
    which is counted, is that of the evaluation set. Metrics are on the parameter servers. It gathers no
    examples: `EvaluationChoice.refusal_to_group`.
    """

    def __init__(self, program: Program) -> None:
        distribution = program.distribution
        assert distribution.coordinator is not None
        self._program = program
        self._coordinator = distribution.coordinator
        self._num_batches = num_eval_batches(program.config, program.source)
        with distribution.strategy.scope():
            self._meters = Meters(program)
            self._iterator = per_worker_iterator(self._coordinator, self._dataset)
            # Concrete, for the reason in `shards`; the iterators of all workers are alike.
            self._batch = tf.function(self._over_batch).get_concrete_function(iterator_spec(self._iterator))

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over approximately all evaluation examples; `step` is the current step of the training.

        Args:
          progress: called after each batch.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        self._meters.reset()
        in_flight = InFlightClosures(self._program.distribution)
        for _ in range(self._num_batches):
            for _ended in in_flight.add(self._coordinator.schedule(self._batch, args=(self._iterator,))):
                progress()
        in_flight.join()
        return self._meters.result("distributed", step, progress)

    def _dataset(self) -> tf.data.Dataset:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        first = tf.cast(worker, tf.int64) * (self._num_batches // self._program.distribution.num_workers)
        return self._program.measured_dataset().repeat().skip(first)

    def _over_batch(self, iterator: Any) -> None:
        self._meters.update(self._meters.measure(next(iterator)))
