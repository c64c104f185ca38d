"""Checks the metrics that early stopping, reduce_lr, the best checkpoint and Keras' callbacks monitor."""

from __future__ import annotations

from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.tf_internals.cluster import being_scheduled


def check_metric(key: str, metric: str, program: Program) -> None:
    """Raises ConfigError if neither epochs nor evaluations of the program have a metric of this name."""
    names = metric_names(program)
    if names and metric not in names:
        raise ConfigError(
            [Problem(key, f"is '{metric}', which this run does not have; choose one of {', '.join(names)}")]
        )


def metric_names(program: Program) -> list[str]:
    """Names of the metrics of the program's epochs and evaluations.

    None if only the first step reveals them: a custom `train_step` that runs eagerly cannot be traced before.
    """
    own = program.own_step
    usual = [*program.loss_names, *program.metric_names]
    if own is not None and not own.names:
        if program.config.trainer.run_eagerly:
            return []
        strategy = program.distribution.strategy
        with strategy.scope(), being_scheduled(strategy):
            own.trace(program.batch_spec, lambda step, batch: strategy.run(step, args=(batch,)))
    names = usual if own is None else [*own.names]
    if program.config.evaluation.runs_on is not None:
        names += [f"val_{name}" for name in (*usual, *program.gathered_metric_names)]
    return names
