"""Creates the configured model for its data, and the configured optimizer."""

from __future__ import annotations

import functools
from typing import Any

import tf_keras

from psrun.config import targets
from psrun.config.keras_names import CALLED_WITH
from psrun.config.run_config import RunConfig
from psrun.data.source import DataSource, task_of
from psrun.errors import ConfigError, Problem
from psrun.models.model import Model
from psrun.models.only_feature import passed
from psrun.program import keras3_models, objective


def make_model(run: RunConfig, source: DataSource) -> Model:
    """The model of the run; the caller's scope decides the placement of its variables.

    Raises:
      ConfigError: model, data and options do not fit each other.
    """
    # A function without readable source may have such a parameter, too.
    call = functools.partial(targets.called, run.model, source=source, seed=run.seed, **run.model_keys.given)
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


def make_optimizer(run: RunConfig) -> Any:
    """The configured optimizer.

    Raises:
      ConfigError: it is none of tf-keras.
    """
    optimizer = targets.called(run.optimizer)
    if any(each.__module__.startswith("keras.") for each in type(optimizer).__mro__):
        message = (
            f"{run.optimizer.name} returned {type(optimizer).__name__} of Keras 3, which loses updates on parameter "
            "servers; return an optimizer of tf_keras.optimizers"
        )
        raise ConfigError([Problem("optimizer._target_", message)])
    return optimizer
