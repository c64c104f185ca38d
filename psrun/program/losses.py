"""Loss and metrics of the configuration, as arguments of Keras' `compile`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tf_keras

from psrun.config import targets
from psrun.config.keras_names import BY_SHAPE, CALLED_WITH
from psrun.errors import ConfigError, Problem

_BINARY_ACCURACY = ("accuracy", "acc", "binary_accuracy", "binaryaccuracy")


def loss(node: Any, from_logits: bool) -> Any:
    """The loss of `model.loss`, or a dict of losses by output.

    Args:
      from_logits: whether a loss that is given by name takes logits, if it can.

    Raises:
      ConfigError: a `_target_` cannot be called with its arguments, or does not return a loss.
    """
    if isinstance(node, Mapping) and "_target_" not in node:
        return {output: _one(item, f"model.loss.{output}", tf_keras.losses.get) for output, item in node.items()}
    loss = _one(node, "model.loss", tf_keras.losses.get)
    return _of_logits(loss) if from_logits and isinstance(node, str) else loss


def metrics(node: Any, from_logits: bool, binary_logits: bool) -> Any:
    """New metrics of `model.metrics`, a list or lists by output.

    Args:
      from_logits: whether metrics that are given by name take logits, if they can.
      binary_logits: the same for an accuracy with the threshold 0.5.

    Raises:
      ConfigError: as `loss`.
    """

    def one(item: Any, key: str) -> Any:
        if not isinstance(item, str):
            return _one(item, key, tf_keras.metrics.get)
        if item.lower() in _BINARY_ACCURACY and binary_logits:
            return tf_keras.metrics.BinaryAccuracy(name=item, threshold=0.0)
        if item.lower() in BY_SHAPE:
            return item  # Keras decides by the shapes of label and prediction
        metric = _one(item, key, tf_keras.metrics.get)
        if from_logits:
            metric = _of_logits(metric)
        # Keras reports a function by the name under which it was requested.
        return metric if isinstance(metric, tf_keras.metrics.Metric) else _named_as(functools.partial(metric), item)

    def several(items: Any, key: str) -> list[Any]:
        if not isinstance(items, list):
            return [] if items is None else [one(items, key)]
        return [one(item, f"{key}[{index}]") for index, item in enumerate(items)]

    if isinstance(node, Mapping) and "_target_" not in node:
        return {output: several(items, f"model.metrics.{output}") for output, items in node.items()}
    return several(node, "model.metrics")


@contextlib.contextmanager
def named(key: str) -> Iterator[None]:
    """Raises Keras' errors about losses or metrics as ConfigError under `model.loss` or `model.metrics`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        message = f"cannot be used with this model: {' '.join(str(error).split())}"
        raise ConfigError([Problem(f"model.{key}", message)]) from error


def _one(node: Any, key: str, get: Callable[[str], Any]) -> Any:
    """What Keras has under a name, or what a `_target_` makes; or the target itself, with its options, where it is a
    function of label and prediction.
    """
    if isinstance(node, str):
        try:
            return get(node)
        except (ValueError, TypeError) as error:
            message = f"cannot be created by name ({error}); use a _target_ with its arguments"
            raise ConfigError([Problem(key, message)]) from error
    options = {name: value for name, value in node.items() if name != "_target_"}
    bound = targets.bound(targets.Target(node["_target_"], options, key), CALLED_WITH)
    return _named_as(bound, node["_target_"].rpartition(".")[2]) if isinstance(bound, functools.partial) else bound


def _of_logits(function: Any) -> Any:
    """A loss or metric, or one like it that takes logits, where it has that option."""
    if hasattr(function, "get_config"):
        config = function.get_config()
        return type(function).from_config({**config, "from_logits": True}) if "from_logits" in config else function
    if "from_logits" in inspect.signature(function).parameters:
        return _named_as(functools.partial(function, from_logits=True), function.__name__)
    return function


def _named_as(function: functools.partial[Any], name: str) -> functools.partial[Any]:
    """Renames a function: Keras reports functions by their names."""
    function.__name__ = name  # type: ignore[attr-defined]
    return function
