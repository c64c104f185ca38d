"""Creates the configured optimizer, and refuses what would give other numbers than Keras alone.

The same holds for the optimizers that a model brings for its own `train_step`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import tf_keras

from psrun.cluster.placement import Placed
from psrun.config import targets
from psrun.config.rules import WITHOUT_AVERAGES
from psrun.config.run_config import OF_A_RUN, RunConfig
from psrun.errors import ConfigError, Problem
from psrun.optimizers import separability
from psrun.program import stacks, whole_variables
from psrun.program.compiled_model import Program
from psrun.tf_internals import keras, optimizers

# The second step differs from that of the same optimizer without a function: a test compares them.
_COUNTS_TRACES = (
    "of tf-keras counts steps in Python when a step is traced, so that its numbers depend on how often that is and on "
    "the number of variables; use tf_keras.optimizers.legacy.Nadam, or Adam"
)
_RATE_TO_TRY = 0.1  # the configured one may be so small that rounding hides a difference


def make_optimizer(run: RunConfig) -> Any:
    """The configured optimizer.

    Raises:
      ConfigError: it is none of tf-keras; or as `prepare`.
    """
    optimizer = targets.called(run.optimizer)
    if not optimizers.is_optimizer(optimizer):
        message = f"{run.optimizer.name} returned {optimizer!r}, not an optimizer of tf_keras.optimizers"
        if any(each.__module__.startswith("keras.") for each in type(optimizer).__mro__):
            kind = type(optimizer).__name__
            message = (
                f"{run.optimizer.name} returned {kind} of Keras 3, which loses updates on parameter servers; return an "
                "optimizer of tf_keras.optimizers"
            )
        raise ConfigError([Problem("optimizer._target_", message)])
    prepare(optimizer, run, "optimizer")
    return optimizer


def prepare(optimizer: Any, run: RunConfig, key: str) -> None:
    """Makes an optimizer treat shards and tables as the variables that they are parts of.

    Args:
      key: of the optimizer, or of the model that has it.

    Raises:
      ConfigError: it has options that psrun does not support, or steps that depend on how often they are traced.
    """
    inner = optimizers.unscaled(optimizer)
    kind = type(inner).__name__
    if run.mode not in OF_A_RUN:
        if getattr(inner, "use_ema", False):
            raise ConfigError([Problem(key, f"{kind} has use_ema={inner.use_ema}, {WITHOUT_AVERAGES}")])
        if isinstance(inner, tf_keras.optimizers.Nadam):
            raise ConfigError([Problem(key, f"{kind} {_COUNTS_TRACES}")])
    optimizers.update_without_momentum(optimizer)
    optimizers.replace_clipnorm(optimizer, whole_variables.clipped)
    optimizers.replace_names_without_weight_decay(optimizer, whole_variables.name_of_whole)


def others_of(network: tf_keras.Model) -> list[Any]:
    """The optimizers that a model has, without the one that psrun compiles it with."""
    return [each for each in keras.optimizers_within(network) if each is not getattr(network, "optimizer", None)]


def check_steps(program: Program, placed: Iterable[Placed]) -> list[str]:
    """Checks that optimizers step by row where variables are cut into shards, and where tables are stored together.

    Returns:
      Warnings of what could not be checked.

    Raises:
      ConfigError: an optimizer computes the step of a row from other rows, too.
    """
    stacked = stacks.tables_in(program.network)
    cut = [name for name in whole_variables.shapes_of_shards(placed) if name not in stacked]
    if not cut and not stacked:
        return []
    problems: list[Problem] = []
    warnings: list[str] = []
    for optimizer, make in _to_try(program):
        name = type(optimizers.unscaled(optimizer)).__name__
        try:
            if separability.steps_by_row(optimizer, make):
                continue
        except Exception as error:  # of any kind: the optimizer may know only the variables of its model
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            text = f"{name} could not be tried on other variables ({reason}): make sure that it computes the step of a "
            warnings.append(f"{text}row from this row alone, since variables are cut or stored together")
            continue
        other = f"{name} computes the step of a row from all rows of its variable"
        if cut:
            kind = program.config.partitioner.kind
            advice = "set partitioner=none, or choose another optimizer"
            problems.append(Problem("partitioner", f"is {kind}, which cuts {cut[0]}, but {other}; {advice}"))
        if stacked:
            together = ", ".join(sorted(stacked))
            advice = "use stack=false, or choose another optimizer"
            problems.append(Problem("optimizer", f"{other}, which holds several tables ({together}); {advice}"))
    if problems:
        raise ConfigError(problems)
    return warnings


def _to_try(program: Program) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """Optimizers, each with a function that makes one like it."""
    run = program.config
    target = run.optimizer
    if "learning_rate" in target.options:
        target = replace(target, options={**target.options, "learning_rate": _RATE_TO_TRY})
    yield program.optimizer, functools.partial(make_optimizer, replace(run, optimizer=target))
    for optimizer in others_of(program.network):
        yield optimizer, functools.partial(like, optimizer, run)


def like(optimizer: Any, run: RunConfig) -> Any:
    """A new optimizer with the options of another; raises what its `get_config` and `from_config` do."""
    other = type(optimizer).from_config(optimizer.get_config())
    prepare(other, run, "model")
    return other
