"""Creates the configured model for its data."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tf_keras

from psrun.config import targets
from psrun.config.keras_names import CALLED_WITH
from psrun.config.run_config import RunConfig
from psrun.data.source import DataSource, task_of
from psrun.errors import ConfigError, Problem
from psrun.models.model import ArgumentError, Model
from psrun.program import keras3_models, objective
from psrun.program.only_feature import passed


def make_model(run: RunConfig, source: DataSource) -> Model:
    """The model of the run; the caller's scope decides the placement of its variables.

    Raises:
      ConfigError: model, data and options do not fit each other.
    """
    # A function without readable source may have such a parameter, too.
    call = functools.partial(targets.called, run.model, source=source, seed=run.seed, **run.model_keys.given)
    with _naming_cut_weights(run), _naming_arguments():
        returned = keras3_models.returned_model(functools.partial(targets.find, run.model), call, run.seed)
    model = Model(returned) if isinstance(returned, tf_keras.Model) else returned
    if not isinstance(model, Model):
        raise ConfigError(
            [Problem("model._target_", f"{run.model.name} returned {type(returned).__name__}, not a model")]
        )
    keys = run.model_keys
    loss = keras3_models.converted_loss(targets.bound_within(keys.loss, "model.loss", CALLED_WITH))

    def metrics() -> Any:
        return keras3_models.converted_metrics(targets.bound_within(keys.metrics, "model.metrics", CALLED_WITH))

    model = passed(model, source.features)
    return objective.resolve(
        model, keys.from_logits, loss, None if keys.metrics is None else metrics, task=task_of(source)
    )


@contextlib.contextmanager
def _naming_arguments() -> Iterator[None]:
    """Names the keys of the arguments that a model function refuses."""
    try:
        yield
    except ConfigError as error:
        if not isinstance(error.__cause__, ArgumentError):
            raise
        raise ConfigError(Problem(_key(name), text) for name, text in error.__cause__.problems) from error.__cause__


def _key(argument: str) -> str:
    if argument.startswith("features."):
        return f"data.{argument}"
    return f"model.{argument}" if argument else "model"


# Of what is raised where a layer needs a whole variable: half precision, functions that layers trace, and tf-idf.
_OF_CUT_WEIGHTS = (
    "ShardedVariable object",
    "'ShardedVariable' object",
    "referencing variables which have been deleted",
)


@contextlib.contextmanager
def _naming_cut_weights(run: RunConfig) -> Iterator[None]:
    """Adds the reason to the error of a layer that cannot use the shards of its weights."""
    try:
        yield
    except ConfigError as error:
        splits = run.cluster.has_parameter_servers and run.partitioner.splits
        if not splits or not any(text in str(error.__cause__) for text in _OF_CUT_WEIGHTS):
            raise
        message = (
            f"is {run.partitioner.kind}, which cuts weights that a layer needs whole, as LSTM and layers in half "
            "precision of tf-keras do, and lookups with tf-idf of Keras 3; set partitioner=none, or use the layer of "
            "the other Keras"
        )
        raise ConfigError([Problem("partitioner", message), *error.problems]) from error.__cause__
