"""Evaluation on the workers in which every example counts exactly once, also if workers are lost.

The evaluation data is split into shards (see `psrun.training.evaluation.shards`). A closure returns labels,
predictions, weights and losses of one shard as plain values; the coordinator has the only metrics, and updates them
once with each shard.
So any Keras metric works, also one that cannot be merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.config import choices
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.program.evaluation_sizes import num_eval_batches
from psrun.training.evaluation.direct import DirectEvaluation
from psrun.training.evaluation.meters import Evaluation, Measured, Meters
from psrun.training.evaluation.shards import SHARDS_PER_WORKER, Shards


def make(program: Program) -> ExactEvaluation | DirectEvaluation:
    """The evaluation by the workers; without workers, by this process."""
    return DirectEvaluation(program) if program.distribution.coordinator is None else ExactEvaluation(program)


class ExactEvaluation:
    """Evaluates a program on its workers, between epochs, when no step runs.

    Raises:
      ConfigError: a loss is not reduced to one number for a batch.
    """

    def __init__(self, program: Program) -> None:
        _check_losses(program.network.loss)
        assert isinstance(program.config.evaluation, choices.Exact)
        requested = program.config.evaluation.num_shards or SHARDS_PER_WORKER * program.distribution.num_workers
        self._meters = Meters(program)  # not in the strategy's scope: variables of this process
        num_shards = max(1, min(num_eval_batches(program.config, program.source), requested))
        self._shards = Shards(program, num_shards, self._measured, program.measured_dataset)
        spec = self._shards.spec
        mean = tf.nest.map_structure(lambda losses: tf.TensorSpec([], losses.dtype), spec.losses)
        self._take_in = tf.function(self._taken_in).get_concrete_function(spec._replace(losses=mean))

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over all evaluation examples, each counted once; `step` is the current step of the training.

        Args:
          progress: called after each shard.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        self._meters.reset()
        for result in self._shards.results():
            measured = tf.nest.map_structure(_tensor, result)
            if measured.num_examples:
                mean = tf.nest.map_structure(tf.reduce_mean, measured.losses)
                self._meters.keep(self._take_in(measured._replace(losses=mean)))
            progress()
        return self._meters.result("exact", step, progress)

    def _taken_in(self, measured: Measured) -> Any:
        self._meters.update(measured)
        return self._meters.rows(measured)

    def _measured(self, batch: tuple[Any, ...]) -> Measured:
        """As `Meters.measure`, with the mean losses of the batch for each of its examples."""
        measured = self._meters.measure(batch)
        count = measured.num_examples
        return measured._replace(losses={name: tf.fill([count], loss) for name, loss in measured.losses.items()})


def _check_losses(losses: Any) -> None:
    """Raises ConfigError for losses of single examples, which Keras weights by the sizes of their batches."""
    if any(getattr(loss, "reduction", None) == tf_keras.losses.Reduction.NONE for loss in tf.nest.flatten(losses)):
        message = "'exact' requires a loss that is one number for a batch, but its reduction is none"
        raise ConfigError([Problem("evaluation", f"{message}; choose direct, or set reduction=sum_over_batch_size")])


def _tensor(value: Any) -> tf.Tensor | tf.RaggedTensor:
    return value if isinstance(value, tf.RaggedTensor) else tf.constant(value)
