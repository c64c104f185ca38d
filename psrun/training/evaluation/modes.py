"""Creates the evaluation that psrun runs between epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import tensorflow as tf
import tf_keras

from psrun.config import choices
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program, zeros
from psrun.training.evaluation.direct import DirectEvaluation
from psrun.training.evaluation.distributed import DistributedEvaluation
from psrun.training.evaluation.exact import ExactEvaluation
from psrun.training.evaluation.meters import Evaluation, metrics_like


class Evaluator(Protocol):
    """Evaluates a program when no step runs."""

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics of the current variables; `step` is the current step of the training.

        Args:
          progress: called periodically during the evaluation.
        """
        ...


def make(program: Program) -> Evaluator | None:
    """The configured evaluation; None if the session runs none.

    Raises:
      ConfigError: the evaluation data never ends, or differs in shape from the training data.
    """
    if program.config.evaluation.runs_on is None:
        return None
    _check_data(program)
    workers = program.distribution.coordinator is not None
    match program.config.evaluation:
        case choices.Direct():
            return DirectEvaluation(program)
        case choices.Exact(num_shards=num_shards):
            return ExactEvaluation(program, num_shards) if workers else DirectEvaluation(program, mode="exact")
        case choices.Distributed():
            return DistributedEvaluation(program)
        case choices.Validation() if workers:
            _check_mergeable(program)
    return None


def _check_mergeable(program: Program) -> None:
    """Keras' exact evaluation clones each metric on the workers, adds up the variables of new clones, and leaves losses
    of layers out.
    """
    losses = program.network.compiled_loss
    if program.network.losses:
        raise _not_mergeable("omits the regularization of the model from val_loss")
    if tf.nest.is_nested(program.prediction_spec):
        raise _not_mergeable("requires a model with one output")
    try:
        type(losses).from_config(losses.get_config())
    except Exception as error:
        raise _not_mergeable(f"copies the loss to workers, which cannot be cloned: {_shown(error)}") from error
    spec = tf.nest.map_structure(zeros, program.evaluation_dataset().element_spec)
    features, label, weight = tf_keras.utils.unpack_x_y_sample_weight(spec)
    prediction = program.network(features, training=False)
    for metric in metrics_like(program).metrics:
        try:
            clone = type(metric).from_config(metric.get_config())
            before = len(clone.variables)
            clone.update_state(label, prediction, sample_weight=weight)
            reason = "creates variables only when called" if len(clone.variables) > before else None
        except Exception as error:
            reason = f"cannot be cloned: {_shown(error)}"
        if reason is not None:
            raise _not_mergeable(f"adds up the workers' metrics, but {metric.name} {reason}")


def _not_mergeable(reason: str) -> ConfigError:
    return ConfigError([Problem("evaluation", f"'validation' {reason}; choose exact")])


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _check_data(program: Program) -> None:
    evaluation = program.evaluation_dataset()
    if int(evaluation.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ConfigError([Problem("data", "the evaluation data is endless; remove .repeat()")])
    here, there = (
        tf.nest.map_structure(lambda spec: f"{spec.shape[1:]} {spec.dtype.name}", specs)
        for specs in (evaluation.element_spec[:2], program.batch_spec[:2])  # either may have weights
    )
    if here != there:
        raise ConfigError(
            [
                Problem(
                    "data", f"evaluation examples have the spec {here}, but training examples {there}; make them equal"
                )
            ]
        )
