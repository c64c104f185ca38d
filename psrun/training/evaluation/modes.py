"""Creates the evaluation that psrun runs between epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.training.evaluation.meters import Evaluation


class Evaluator(Protocol):
    """Evaluates a program when no step runs."""

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics of the current variables; `step` is the current step of the training.

        Args:
          progress: called periodically during the evaluation.
        """
        ...


def make(program: Program) -> Evaluator | None:
    """The evaluation by this process; None if it runs none.

    Raises:
      ConfigError: the evaluation data never ends, or differs in shape from the training data.
    """
    evaluation = program.config.evaluation
    if evaluation.runs_on is None:
        return None
    _check_data(program)
    return None if evaluation.runs_on == "evaluator" else evaluation.load()(program)


def _check_data(program: Program) -> None:
    evaluation = program.evaluation_examples
    if int(evaluation.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ConfigError([Problem("data", "the evaluation data is endless; remove .repeat()")])
    here, there = (
        tf.nest.map_structure(lambda spec: f"{spec.shape[1:]} {spec.dtype.name}", specs)
        for specs in (evaluation.element_spec[:2], program.batch_spec[:2])  # either may have weights
    )
    if here != there:
        message = f"evaluation examples have the spec {here}, but training examples {there}; make them equal"
        raise ConfigError([Problem("data", message)])
    _check_gathering(program)


def _check_gathering(program: Program) -> None:
    """Raises ConfigError if the evaluation cannot gather examples, also for an evaluator task, before the training."""
    for metrics in program.gathered_metrics.values():
        refusal = program.config.evaluation.refusal_to_group(metrics[0].name)
        if refusal is not None:
            raise ConfigError([Problem("evaluation", refusal)])
    for gathering in program.gatherings:
        gathering.check()
