"""Creates the evaluation that psrun runs between epochs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from psrun.config import choices
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.training.evaluation import mergeable
from psrun.training.evaluation.direct import DirectEvaluation
from psrun.training.evaluation.distributed import DistributedEvaluation
from psrun.training.evaluation.exact import ExactEvaluation
from psrun.training.evaluation.meters import Evaluation, Meters


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
    evaluation, workers = program.config.evaluation, program.distribution.coordinator is not None
    if evaluation.runs_on is None:
        return None
    _check_data(program)
    if evaluation.runs_on == "evaluator" or (evaluation.runs_on == "fit" and not workers):
        return None
    in_scope = program.distribution.strategy.scope() if evaluation.updated_by_workers else contextlib.nullcontext()
    with in_scope:
        meters = Meters(program)
    match evaluation:
        case choices.Exact(num_shards=num_shards) if workers:
            return ExactEvaluation(program, meters, num_shards)
        case choices.Direct() | choices.Exact():
            return DirectEvaluation(program, meters, mode=evaluation.kind)
        case choices.Distributed():
            return DistributedEvaluation(program, meters)
        case _:
            mergeable.check(program, meters.metrics)
            return None


def _check_data(program: Program) -> None:
    evaluation = program.evaluation_examples
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
