"""The loss and metrics of a model: its own, the configured ones or the usual ones of the task.

They are over probabilities or logits. The outputs of a model must match the labels: Keras' losses
and metrics broadcast. Two columns of predictions and one of labels train without an error, as do
labels (batch,) and predictions (batch, 1, 1); a class without a column is an error of a kernel on a
worker in the middle of the training.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import tensorflow as tf
import tf_keras

from psrun import metrics, parts
from psrun.config import rules
from psrun.config.rules import NAMES_BY_SHAPE
from psrun.data.source import DataSource, Task, task_of
from psrun.errors import ConfigError, Problem
from psrun.models.model import Model
from psrun.parts import GatheredMetric
from psrun.program.adapters import AdaptedModel
from psrun.program.batch_checks import shown_shape
from psrun.tf_internals import keras

_BINARY_ACCURACY = ("accuracy", "acc", "binary_accuracy", "binaryaccuracy")
# Rounding errors of averaged probabilities stay within this margin; logits exceed it soon.
_TOLERANCE = 1e-5
_TRAINING_BITS = 8  # of the counters of an AUC: each closure sends them, and each step of `fit` reads them
_OF_POSITIVES = (tf_keras.metrics.Recall, tf_keras.metrics.PrecisionAtRecall, tf_keras.metrics.RecallAtPrecision)
_OF_BOTH = (
    tf_keras.metrics.AUC,
    tf_keras.metrics.SensitivityAtSpecificity,
    tf_keras.metrics.SpecificityAtSensitivity,
)
_TO_PROBABILITIES = {"binary": tf.sigmoid, "multiclass": tf.nn.softmax}
_OF_LOSS = ("train_step", "compute_loss")  # a model that overrides one of these is not checked


def resolve(
    model: Model, from_logits: bool | None, loss: Any, metrics: Callable[[], Any] | None, *, task: str | None
) -> Model:
    """`model` with the configured loss and metrics in place of its own, and with `from_logits` decided by the model
    itself, by the configuration and by the loss.

    Args:
      from_logits: as configured; None if it is not.
      loss: a name of Keras, a loss, or a mapping of these by output; None for the model's.
      metrics: makes the configured metrics: a list of names of Keras and metrics, or lists by output; None for the
        model's.

    Raises:
      ConfigError: they contradict each other, the data's task, or the last layer of the network; or a loss or metric
        cannot be made.
    """
    requested = model.from_logits if from_logits is None else from_logits
    if model.has_scores and loss is not None:
        message = "is not used: the softmax over a batch is the whole loss; set it to null, or model.objective=labels"
        raise ConfigError([Problem("model.loss", message)])
    if loss is not None:
        model = replace(model, loss=_configured_loss(loss, bool(requested)))
    loss_logits = _loss_logits(model)
    settings = [value for value in (from_logits, model.from_logits, loss_logits) if value is not None]
    if len(set(settings)) > 1:
        raise _problem(f"is {from_logits}, but the model has from_logits={model.from_logits} and its loss "
                       f"from_logits={loss_logits}; make them agree")  # fmt: skip
    takes_logits = bool(settings and settings[0])
    if takes_logits and isinstance(model.loss, Mapping):
        raise _problem("is true, but the losses are by output; remove it and set from_logits on the losses of outputs "
                       "that are logits")  # fmt: skip
    if takes_logits and task == "regression":
        raise _problem("is true, but task=regression has no logits; remove it")
    if takes_logits and (activation := _last_activation(model.network)) in ("sigmoid", "softmax"):
        raise _problem(f"is true, but the last layer of the model is a {activation} and returns probabilities; set "
                       "model.from_logits=false or remove the activation")  # fmt: skip
    if metrics is not None:
        binary_logits = takes_logits and task == "binary"
        model = replace(model, metrics=lambda: _configured_metrics(metrics(), takes_logits, binary_logits))
    return replace(model, from_logits=takes_logits)


def _problem(message: str) -> ConfigError:
    return ConfigError([Problem("model.from_logits", message)])


def loss_of(model: Model, task: str | None) -> Any:
    """The loss that the configuration names or the model brings, as `compile` takes it, or the usual one of the task.

    Raises:
      ConfigError: there is no such loss.
    """
    losses = tf_keras.losses
    if model.loss is not None:
        return model.loss
    if task not in get_args(Task):
        message = f"is required: the task of the data is {task!r}, not one of {', '.join(get_args(Task))}"
        raise ConfigError([Problem("model.loss", message)])
    if task == "regression":
        return losses.MeanSquaredError()
    kind = losses.BinaryCrossentropy if task == "binary" else losses.SparseCategoricalCrossentropy
    return kind(from_logits=bool(model.from_logits))


def metrics_of(model: Model, task: str | None, *, evaluating: bool = False) -> Any:
    """New metric objects, as `compile` takes them: the configured ones, the model's own, or the usual ones of the task.

    Metrics of gathered examples are left out. The names do not depend on other metrics of the process.

    Args:
      evaluating: whether they are of an evaluation; in training an AUC has fewer counters.
    """
    make = model.metrics
    made = _usual_metrics(model, task) if make is None else keras.named_alone(lambda: _objects(make()))
    made = _map_metrics(lambda metrics: [_for_training(each) for each in metrics] if not evaluating else metrics, made)
    if model.has_scores or task == "regression":
        _refuse_probabilities(made, "scores, which only rank" if model.has_scores else "numbers (task=regression)")
    return made


def _refuse_probabilities(made: Any, what: str) -> None:
    """Raises ConfigError if there are metrics of probabilities."""
    of_probabilities: Any = tuple(metrics.OF_PROBABILITIES.values())
    for metric in tf.nest.flatten(made):
        if isinstance(metric, of_probabilities):
            message = f"has {metric.name}, a metric of probabilities, but the model returns {what}; remove it"
            raise ConfigError([Problem("model.metrics", message)])


def gathered_metrics_of(model: Model) -> dict[str, list[GatheredMetric]]:
    """The configured metrics of gathered examples, by output; '' where metrics are not by output."""
    made = [] if model.metrics is None else _objects(model.metrics())
    by_output = made if isinstance(made, Mapping) else {"": made}
    found = {}
    for output, items in by_output.items():
        metrics = [each for each in tf.nest.flatten(items) if isinstance(each, GatheredMetric)]
        if metrics:
            found[output] = metrics
    return found


def _map_metrics(change: Callable[[list[Any]], list[Any]], made: Any) -> Any:
    """Metrics, a list or lists by output, changed list by list, without metrics of gathered examples."""
    if isinstance(made, Mapping):
        return {output: _map_metrics(change, items) for output, items in made.items()}
    items = made if isinstance(made, list | tuple) else [made]
    return change([each for each in items if not isinstance(each, GatheredMetric)])


def _for_training(metric: Any) -> Any:
    if isinstance(metric, metrics.AUC) and metric.bits > _TRAINING_BITS:
        return metrics.AUC.from_config({**metric.get_config(), "bits": _TRAINING_BITS})
    return metric


def _usual_metrics(model: Model, task: str | None) -> list[tf_keras.metrics.Metric]:
    keras_metrics = tf_keras.metrics
    if task not in get_args(Task):
        return []
    if task == "regression":
        return [keras_metrics.MeanAbsoluteError(name="mae")]
    if task == "multiclass":
        return [keras_metrics.SparseCategoricalAccuracy(name="accuracy")]
    threshold = 0.0 if model.from_logits else 0.5
    return [
        metrics.AUC(from_logits=bool(model.from_logits)),
        keras_metrics.BinaryAccuracy(name="accuracy", threshold=threshold),
    ]


def _objects(made: Any) -> Any:
    """Metrics with those made that are given by the name of a class; Keras would make and number them later."""
    if isinstance(made, Mapping):
        return {output: _objects(items) for output, items in made.items()}
    if isinstance(made, list | tuple):
        return [_objects(item) for item in made]
    if not isinstance(made, str) or made.lower() in NAMES_BY_SHAPE:
        return made
    if (own := _own_metric(made, from_logits=False)) is not None:
        return own
    try:
        metric = tf_keras.metrics.get(made)
    except (ValueError, TypeError):
        return made  # Keras raises this again when it builds the metrics, which names the key
    return metric if isinstance(metric, tf_keras.metrics.Metric) else made


def _own_metric(name: str, *, from_logits: bool) -> tf_keras.metrics.Metric | GatheredMetric | None:
    """The metric of psrun or of a part with this name; None if there is none.

    Raises:
      ValueError: the number in the name is missing, or is no positive integer.
    """
    kind = metrics.OF_PROBABILITIES.get(name.lower())
    if kind is not None:
        return kind(from_logits=from_logits)
    if rules.is_keras_metric(name):
        return None
    return parts.gathered_metric(name)


def check_metrics(metrics: Iterable[tf_keras.metrics.Metric], *, weighted: bool) -> None:
    """Checks the metrics of Keras that a network was compiled with.

    Args:
      weighted: whether they use weights of examples.

    Raises:
      ConfigError: a metric returns several values, one for each class or threshold; or it is wrong with weights.
    """
    for metric in metrics:
        if weighted and isinstance(metric, tf_keras.metrics.FBetaScore):
            # It takes weights of shape (batch,), but losses and metrics get them with the rank of predictions.
            message = f"{metric.name} (F1Score or FBetaScore) is wrong in tf-keras where examples have weights"
            raise ConfigError([Problem("model.metrics", f"{message}; remove it, or choose Precision and Recall")])
        # Its result would tell, but reading it is a collective operation where several workers mirror variables.
        by_class = getattr(metric, "average", "") is None or isinstance(metric, tf_keras.metrics.MeanTensor)
        thresholds = getattr(metric, "init_thresholds", None)
        if by_class or (isinstance(thresholds, list | tuple) and len(thresholds) > 1):
            message = f"{metric.name} has several values, but a metric of a run is one number"
            raise ConfigError([Problem("model.metrics", f"{message}; set an average, or one threshold")])


def value_of(metric: tf_keras.metrics.Metric) -> float | None:
    """The result of a metric; None if it is undefined.

    Raises:
      ConfigError: it is not one number.
    """
    if is_undefined(metric):
        return None
    result = metric.result()
    try:
        return float(result)
    except TypeError as error:
        message = f"{metric.name} returned {type(result).__name__}, but a metric of a run is one number"
        raise ConfigError([Problem("model.metrics", message)]) from error


def is_undefined(metric: tf_keras.metrics.Metric) -> bool:
    """Whether a metric is about two classes, or about the positive one, and no example is of such a class.

    Keras returns 0 or 1 then. An AUC of several labels is Keras' mean of theirs, unless none of these is defined.
    """
    if isinstance(metric, tuple(metrics.OF_PROBABILITIES.values())):
        return hasattr(metric, "is_undefined") and metric.is_undefined()
    if not isinstance(metric, (*_OF_POSITIVES, *_OF_BOTH)) or not metric.variables:
        return False
    # By threshold, and by label if there are several; the sums are equal for all thresholds.
    undefined = tf.equal(tf.add(metric.true_positives, metric.false_negatives)[0], 0)
    if not isinstance(metric, _OF_POSITIVES) and metric.get_config().get("curve") != "PR":
        undefined |= tf.equal(tf.add(metric.true_negatives, metric.false_positives)[0], 0)
    return bool(tf.reduce_all(undefined))


def together(made: Any, counters: list[tf_keras.metrics.Metric]) -> Any:
    """Metrics as `compile` takes them, with an example counter for each output."""
    if not isinstance(made, Mapping):
        return [*made, *counters]
    first = next(iter(made), None)
    return {name: [*items, *(counters if name == first else ())] for name, items in made.items()}


def may_be_logits(model: Model, task: str | None) -> bool:
    """Whether loss or metrics need probabilities, and the network may return something else."""
    if model.from_logits or task not in _TO_PROBABILITIES or _last_activation(model.network) in ("sigmoid", "softmax"):
        return False
    return model.loss is None or _loss_logits(model) is False or (model.metrics is None and task == "binary")


def num_outside(prediction: tf.Tensor | dict[str, tf.Tensor]) -> tf.Tensor:
    """The number of values outside of [0, 1]: an int64 scalar."""
    counts = [
        tf.math.count_nonzero(tf.logical_or(values < -_TOLERANCE, values > 1 + _TOLERANCE))
        for values in tf.nest.flatten(prediction)
    ]
    return tf.add_n(counts)


def outside_error(count: int, where: str) -> ConfigError:
    """The error for `count` such values among the predictions of `where`."""
    return _problem(
        f"is not true, but {count} predictions of {where} lie outside [0, 1]: loss and metrics need probabilities. Set "
        "model.from_logits=true if the model returns logits, or end it with a sigmoid (softmax for several classes)"
    )


def to_probabilities(
    prediction: tf.Tensor | dict[str, tf.Tensor], model: Model, task: str | None
) -> tf.Tensor | dict[str, tf.Tensor]:
    """The network's outputs as predictions and exports have them: probabilities, or numbers of a regression."""
    convert = _TO_PROBABILITIES.get(task or "")
    return tf.nest.map_structure(convert, prediction) if model.from_logits and convert else prediction


@contextlib.contextmanager
def named(key: str) -> Iterator[None]:
    """Raises Keras' errors about losses or metrics as ConfigError under `model.loss` or `model.metrics`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        message = f"cannot be used with this model: {' '.join(str(error).split())}"
        raise ConfigError([Problem(f"model.{key}", message)]) from error


def _loss_logits(model: Model) -> bool | None:
    """Whether the model's loss takes logits; None if it has no such option, or there are several losses."""
    if isinstance(model.loss, tf_keras.losses.Loss):
        return model.loss.get_config().get("from_logits")
    if not callable(model.loss):
        return None
    option = inspect.signature(model.loss).parameters.get("from_logits")
    if option is None or option.default is inspect.Parameter.empty:
        return None
    return bool(option.default)


def _last_activation(network: tf_keras.Model) -> str | None:
    """The name of the activation of the output layer; None if it is unknown."""
    if isinstance(network, AdaptedModel):
        return network.last_activation
    if isinstance(network, tf_keras.Sequential):
        return _activation(network.layers[-1]) if network.layers else None
    names = {_activation(network.get_layer(name)) for name in getattr(network, "output_names", None) or ()}
    return names.pop() if len(names) == 1 else None


def _activation(layer: tf_keras.layers.Layer) -> str | None:
    if isinstance(layer, tf_keras.Model):
        return _last_activation(layer)
    # Other layers may compute more after their activation.
    has_activation = type(layer) in (tf_keras.layers.Dense, tf_keras.layers.Activation)
    return getattr(layer.activation, "__name__", None) if has_activation else None


# -- loss and metrics of the configuration


def _configured_loss(node: Any, from_logits: bool) -> Any:
    """The loss of `model.loss`, or a dict of losses by output; one that is given by name takes logits, if it can."""
    if isinstance(node, Mapping):
        return {output: _one(item, f"model.loss.{output}", tf_keras.losses.get) for output, item in node.items()}
    loss = _one(node, "model.loss", tf_keras.losses.get)
    return _of_logits(loss) if from_logits and isinstance(node, str) else loss


def _configured_metrics(node: Any, from_logits: bool, binary_logits: bool) -> Any:
    """New metrics of `model.metrics`, a list or lists by output; those that are given by name take logits, if they can.

    Args:
      binary_logits: whether an accuracy with the threshold 0.5 takes them.
    """

    def one(item: Any, key: str) -> Any:
        if not isinstance(item, str):
            return _one(item, key, tf_keras.metrics.get)
        if item.lower() in _BINARY_ACCURACY and binary_logits:
            return tf_keras.metrics.BinaryAccuracy(name=item, threshold=0.0)
        if item.lower() in NAMES_BY_SHAPE:
            return item  # Keras decides by the shapes of label and prediction
        own = _own_metric(item, from_logits=from_logits)
        metric = own or _one(item, key, tf_keras.metrics.get)
        if from_logits and own is None:
            metric = _of_logits(metric)
        if isinstance(metric, tf_keras.metrics.Metric | GatheredMetric):
            return metric
        # Keras reports a function by the name under which it was requested.
        return _named_as(functools.partial(metric), item)

    def several(items: Any, key: str) -> list[Any]:
        if not isinstance(items, list):
            return [] if items is None else [one(items, key)]
        return [one(item, f"{key}[{index}]") for index, item in enumerate(items)]

    if isinstance(node, Mapping):
        return {output: several(items, f"model.metrics.{output}") for output, items in node.items()}
    return several(node, "model.metrics")


def _one(node: Any, key: str, get: Callable[[str], Any]) -> Any:
    """What Keras has under a name; other nodes are losses or metrics already."""
    if not isinstance(node, str):
        return node
    try:
        return get(node)
    except (ValueError, TypeError) as error:
        message = f"cannot be created by name ({error}); use a _target_ with its arguments"
        raise ConfigError([Problem(key, message)]) from error


def _of_logits(function: Any) -> Any:
    """A loss or metric, or one like it that takes logits, where it has that option."""
    if hasattr(function, "get_config"):
        config = function.get_config()
        if "from_logits" not in config:
            return function
        return type(function).from_config({**config, "from_logits": True})
    if "from_logits" in inspect.signature(function).parameters:
        return _named_as(functools.partial(function, from_logits=True), function.__name__)
    return function


def _named_as(function: functools.partial[Any], name: str) -> functools.partial[Any]:
    """Renames a function: Keras reports functions by their names."""
    function.__name__ = name  # type: ignore[attr-defined]
    return function


def check_widths(prediction: Any, label: Any, model: Model, source: DataSource) -> None:
    """Refuses a model with outputs that do not match the labels, unless it computes its loss itself.

    Args:
      prediction, label: specs of a batch, as the network returns it and as the data has it.

    Raises:
      ConfigError: their shapes do not fit.
    """
    predictions = tf.nest.flatten(prediction)
    labels = tf.nest.flatten(label)
    task = task_of(source)
    own_loss = any(getattr(type(model.network), name) is not getattr(tf_keras.Model, name) for name in _OF_LOSS)
    if task is None or own_loss or model.loss is not None or len(predictions) != 1 or len(labels) != 1:
        return
    predicted = predictions[0].shape
    expected = labels[0].shape
    if predicted.rank is None or expected.rank is None:
        return
    if task == "multiclass":
        fits = _fit([*predicted[1:]], [*_essential(expected), source.num_classes])
        width = source.num_classes
        why = f"the data has {source.num_classes} classes (task=multiclass), which need one value each"
    else:
        fits = _fit(_essential(predicted), _essential(expected))
        width = expected[-1] if expected.rank > 1 else 1
        why = f"labels have shape {shown_shape(expected)} (task={task})"
    if not fits:
        remedy = f"end the model with Dense({width})"
        if width is None:
            remedy = "give the dataset the shape of its labels, such as tf.TensorSpec((None, 1), tf.float32)"
        raise ConfigError(
            [Problem("model", f"returns predictions of shape {shown_shape(predicted)}, but {why}: {remedy}")]
        )
    # Keras adds or removes one last axis of size 1, and would pair each label with each prediction for more. psrun's
    # metrics add one to labels (batch,) only.
    if abs(predicted.rank - expected.rank) > 1 or expected.rank > max(predicted.rank, 2):
        labels_text = f"labels have shape {shown_shape(expected)} (task={task})"
        shapes = f"predictions of shape {shown_shape(predicted)}, but {labels_text}"
        raise ConfigError([Problem("model", f"returns {shapes}: give both as many axes")])


def _essential(shape: tf.TensorShape) -> list[int | None]:
    """The shape of one example, without trailing axes of size 1, which Keras adds and removes."""
    sizes = [*shape[1:]]
    while sizes and sizes[-1] == 1:
        sizes.pop()
    return sizes


def _fit(predicted: list[int | None], expected: list[int | None]) -> bool:
    return len(predicted) == len(expected) and all(a == b or None in (a, b) for a, b in zip(predicted, expected))


class ExamplesSeen(tf_keras.metrics.Metric):
    """Counts the examples that the metrics have processed."""

    def __init__(self, name: str = "examples_seen", dtype: tf.DType = tf.int64) -> None:
        super().__init__(name=name, dtype=dtype)
        self.count = self.add_weight(name="count", initializer="zeros", dtype=tf.int64)

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None) -> None:
        self.count.assign_add(tf.shape(tf.nest.flatten(y_true)[0], out_type=tf.int64)[0])

    def result(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.count)
