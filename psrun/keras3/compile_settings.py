"""Losses, metrics and compile settings of Keras 3 as those of tf-keras. Imports Keras 3."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf
import tf_keras

from psrun.config import rules
from psrun.errors import ConfigError, Problem
from psrun.keras3 import internals
from psrun.models.model import Model

# Settings of `compile` that psrun has a key for.
_INSTEAD = {
    "loss_weights": "weight the outputs in one loss of your own (model.loss)",
    "weighted_metrics": "use metrics=, which psrun weights where the data has weights",
    "run_eagerly": "set trainer.run_eagerly=true",
    "steps_per_execution": "set trainer.steps_per_execution",
    "jit_compile": "psrun does not compile with XLA",
}
_UNSET: dict[str, tuple[Any, ...]] = {"steps_per_execution": (1, None), "jit_compile": (False, "auto", None)}
_REDUCTIONS = {
    "sum_over_batch_size": tf_keras.losses.Reduction.AUTO,
    "mean": tf_keras.losses.Reduction.AUTO,
    "sum": tf_keras.losses.Reduction.SUM,
    "none": tf_keras.losses.Reduction.NONE,
    None: tf_keras.losses.Reduction.NONE,
}


def with_compiled(model: Model, compiled: keras.Model) -> Model:
    """`model` with the loss and metrics that the Keras 3 model was compiled with, where it has none.

    Raises:
      ConfigError: the model was compiled with other settings, which psrun would not use.
    """
    settings = internals.compile_settings(compiled)
    if settings and (problems := list(_unused(settings))):
        raise ConfigError(problems)
    loss = settings.get("loss")
    metrics = settings.get("metrics")
    if model.loss is None and loss is not None:
        model = replace(model, loss=loss)
    if model.metrics is None and metrics is not None:
        model = replace(model, metrics=lambda: _of_compile(metrics))
    return model


def _of_compile(metrics: Any) -> Any:
    """The metrics that a Keras 3 model was compiled with, as `converted_metrics` gives them.

    Raises:
      ConfigError: tf-keras has no metric of a kind.
    """
    try:
        return converted_metrics(metrics)
    except ConfigError as error:
        (problem,) = error.problems
        raise ConfigError([Problem("model", f"in compile(metrics=...), {problem.message}")]) from error


def with_converted(model: Model) -> Model:
    """`model` with the losses and metrics of Keras 3 as those of tf-keras."""
    metrics = model.metrics
    model = replace(model, loss=converted_loss(model.loss))
    return model if metrics is None else replace(model, metrics=lambda: converted_metrics(metrics()))


def _unused(settings: Mapping[str, Any]) -> Iterator[Problem]:
    optimizer = settings["optimizer"]
    default = keras.optimizers.RMSprop()
    if type(optimizer) is not type(default) or optimizer.get_config() != {
        **default.get_config(),
        "name": optimizer.name,
    }:
        kind = type(optimizer).__name__
        message = f"is compiled with the optimizer {kind}, but a run trains with the optimizer group"
        yield Problem("model", f"{message}; choose optimizer=..., and remove optimizer= from compile")
    for name, instead in _INSTEAD.items():
        value = settings.get(name)
        if value not in _UNSET.get(name, (False, None)):
            yield Problem("model", f"is compiled with {name}={value!r}, which psrun does not use; {instead}")


# -- losses


def converted_loss(loss: Any) -> Any:
    """A loss, or losses by output, as tf-keras' `compile` takes them.

    Raises:
      ConfigError: a loss has another reduction than those of tf-keras.
    """
    return _each(_loss, loss)


def _each(function: Callable[[Any], Any], values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _each(function, value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_each(function, value) for value in values]
    return function(values)


def _loss(loss: Any) -> Any:
    if isinstance(loss, str) and loss not in rules.loss_names():
        loss = keras.losses.get(loss)
    return Keras3Loss(loss) if isinstance(loss, keras.losses.Loss) else loss


class Keras3Loss(tf_keras.losses.Loss):
    """A loss of Keras 3: its values by example, weighted and reduced by tf-keras."""

    def __init__(self, loss: keras.losses.Loss) -> None:
        if loss.reduction not in _REDUCTIONS:
            message = (
                f"{loss.name} has the reduction {loss.reduction!r}, must be sum_over_batch_size, mean, sum or none"
            )
            raise ConfigError([Problem("model.loss", message)])
        super().__init__(reduction=_REDUCTIONS[loss.reduction], name=loss.name)
        self._loss = loss

    @tf.autograph.experimental.do_not_convert  # as the trainer of Keras 3 does not convert losses
    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        label, prediction = (keras.ops.convert_to_tensor(each, dtype=self._loss.dtype) for each in (y_true, y_pred))
        return self._loss.call(label, prediction)

    def get_config(self) -> dict[str, Any]:
        """That of Keras 3's loss; it says whether the loss takes logits."""
        return self._loss.get_config()


def with_cast_labels(loss: Any) -> Any:
    """A loss, or losses by output, with each function of the user as one that casts its labels.

    `compile` of Keras 3 makes a loss of a function, and every loss casts labels and predictions to its own dtype.
    tf-keras leaves labels of integers as they are, which cannot be multiplied with predictions.
    """
    return _each(_with_cast_labels, loss)


def _with_cast_labels(loss: Any) -> Any:
    is_function = callable(loss) and not isinstance(loss, tf_keras.losses.Loss)
    function = loss.func if isinstance(loss, functools.partial) else loss
    if not is_function or str(getattr(function, "__module__", "")).startswith(("tf_keras.", "psrun.")):
        return loss

    def cast(y_true: Any, y_pred: Any) -> Any:
        label, prediction = (keras.ops.convert_to_tensor(each, keras.config.floatx()) for each in (y_true, y_pred))
        return loss(label, prediction)

    cast.__name__ = getattr(function, "__name__", type(function).__name__)  # tf-keras reports it
    return tf.autograph.experimental.do_not_convert(cast)  # as the trainer of Keras 3 does not convert losses


# -- metrics


def converted_metrics(metrics: Any) -> Any:
    """Metrics as tf-keras' `compile` takes them: new ones of the same kinds for those of Keras 3.

    Raises:
      ConfigError: tf-keras has no metric of a kind.
    """
    return _each(_metric, metrics)


def _metric(metric: Any) -> Any:
    if isinstance(metric, str) and not rules.is_metric(metric):
        metric = keras.metrics.get(metric)
    return _twin(metric) if isinstance(metric, keras.metrics.Metric) else metric


def _twin(metric: keras.metrics.Metric) -> tf_keras.metrics.Metric:
    kind = type(metric)
    twin = getattr(tf_keras.metrics, kind.__name__, None)
    if not kind.__module__.startswith("keras.") or twin is None:
        message = f"{kind.__name__} is a metric of Keras 3, which loses updates on parameter servers; write it as a"
        instead = "subclass of tf_keras.metrics.Metric, or as a function of y_true and y_pred"
        raise ConfigError([Problem("model.metrics", f"{message} {instead}")])
    options = {name: value for name, value in metric.get_config().items() if name != "dtype"}
    if internals.names_itself(metric):
        del options["name"]  # tf-keras gives the twin its own
    if kind is keras.metrics.MeanMetricWrapper:
        return twin(internals.function_of(metric), name=metric.name)
    known = inspect.signature(twin.__init__).parameters
    return twin(**{name: value for name, value in options.items() if name in known})
