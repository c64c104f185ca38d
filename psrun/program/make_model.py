"""Creates the configured model for its data."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import parts
from psrun.config import targets
from psrun.config.keras_names import CALLED_WITH
from psrun.config.run_config import RunConfig
from psrun.data.source import DataSource, task_of
from psrun.errors import ConfigError, Problem
from psrun.layers.adapter import AdaptedModel
from psrun.metrics.gathered import GatheredMetric
from psrun.models.model import ArgumentError, Model
from psrun.program import adapters, objective
from psrun.program.whole_variables import naming_cut_weights


def make_model(run: RunConfig, source: DataSource) -> Model:
    """The model of the run; the caller's scope decides the placement of its variables.

    Raises:
      ConfigError: model, data and options do not fit each other.
    """
    # A function without readable source may have such a parameter, too.
    call = functools.partial(targets.called, run.model, source=source, seed=run.seed, **run.model_keys.given)
    function = adapters.ModelFunction(functools.partial(targets.find, run.model), call, run.seed)
    asked = adapters.own()
    with naming_cut_weights(run), _naming_arguments():
        returned = adapters.adapted(asked, function)
        if not adapters.is_model(returned) and (others := adapters.others()):
            asked += others
            returned = adapters.adapted(asked, function)
    if not adapters.is_model(returned):
        raise ConfigError([Problem("model._target_", _no_model(run.model.name, returned))])
    model = returned if isinstance(returned, Model) else Model(returned)
    keys = run.model_keys
    loss = adapters.loss(asked, targets.bound_within(keys.loss, "model.loss", CALLED_WITH))

    def metrics() -> Any:
        made = targets.bound_within(keys.metrics, "model.metrics", CALLED_WITH, (GatheredMetric,))
        return adapters.metrics(asked, made)

    if run.export.top_k is not None and model.towers is None:
        message = "needs a model with towers (psrun.models.model.Towers); set it to null"
        raise ConfigError([Problem("export.top_k", message)])
    model = _of_only_feature(model, source.features)
    return objective.resolve(
        model, keys.from_logits, loss, None if keys.metrics is None else metrics, task=task_of(source)
    )


def _no_model(name: str, returned: Any) -> str:
    """The message for what a model function returned, which is neither a model of tf-keras nor adapted by a part."""
    network = returned.network if isinstance(returned, Model) else returned
    kind = type(network)
    where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    found = f"{where}{kind.__qualname__}"
    return parts.with_missing(f"{name} returned {found}, not a tf_keras.Model, and no part adapts it")


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


# -- models with one unnamed input, on data with one feature


def _of_only_feature(model: Model, features: Collection[str]) -> Model:
    """`model` with preprocessing that selects the only feature, if its network takes one tensor.

    A model with its own preprocessing is unchanged: the preprocessing defines the inputs of the network.

    Raises:
      ConfigError: the network takes one tensor, but there are several features.
    """
    if model.preprocessing is not None or not _takes_one_tensor(model.network, features):
        return model
    if len(features) != 1:
        message = f"takes one input, but the data has the features {', '.join(features)}; add an input for each"
        raise ConfigError([Problem("model", f"{message}: tf_keras.Model({{name: tf_keras.Input(...), ...}}, outputs)")])
    return replace(model, preprocessing=_only)


def _only(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
    (value,) = features.values()
    return value


def _takes_one_tensor(network: tf_keras.Model, features: Collection[str]) -> bool:
    """Whether the network takes one tensor instead of features by name; subclasses of Model take features by name."""
    if isinstance(network, AdaptedModel):
        return network.takes_one_tensor(features)
    if isinstance(network, tf_keras.Sequential) and not network.inputs:
        return bool(network.layers) and _of_keras(network.layers[0], features)
    names = getattr(network, "input_names", None) or []
    if not names or isinstance(network.input, dict) or len(names) > 1:
        return False
    return names[0] not in features


def _of_keras(layer: tf_keras.layers.Layer, features: Collection[str]) -> bool:
    """Whether the first layer takes one tensor, as most of Keras' layers do, or is a model that does."""
    if isinstance(layer, tf_keras.Model):
        return _takes_one_tensor(layer, features)
    by_name = isinstance(layer, tf_keras.layers.DenseFeatures | tf_keras.layers.Lambda)
    return type(layer).__module__.startswith("tf_keras.") and not by_name
