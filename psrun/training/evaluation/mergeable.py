"""Whether Keras' exact evaluation, by `validation_data`, can evaluate a model under parameter servers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.layers.adapter import AdaptedModel
from psrun.program.compiled_model import Program
from psrun.program.zeros import zeros
from psrun.tf_internals import keras
from psrun.training.evaluation.meters import Meters


def check(program: Program) -> None:
    """Raises ConfigError if Keras' exact evaluation on workers would be wrong.

    It clones each metric on the workers, adds up the variables of new clones, and leaves losses of layers out.
    """
    if program.distribution.coordinator is None:
        return
    network = program.network
    losses = network.compiled_loss
    if network.losses or (isinstance(network, AdaptedModel) and network.has_losses):
        raise _not_mergeable("omits the regularization of the model from val_loss")
    if tf.nest.is_nested(program.prediction_spec):
        raise _not_mergeable("requires a model with one output")
    try:
        type(losses).from_config(losses.get_config())
    except Exception as error:
        raise _not_mergeable(f"copies the loss to workers, which cannot be cloned: {_shown(error)}") from error
    spec = tf.nest.map_structure(zeros, examples(program).element_spec)
    features, label, weight = tf_keras.utils.unpack_x_y_sample_weight(spec)
    prediction = program.network(features, training=False)
    if tf.nest.flatten(keras.masks_of(prediction)):
        raise _not_mergeable("ignores the mask of predictions in metrics")
    for metric in Meters(program).metrics:
        try:
            clone = type(metric).from_config(metric.get_config())
            before = len(clone.variables)
            clone.update_state(label, prediction, sample_weight=weight)
            reason = "creates variables only when called" if len(clone.variables) > before else None
        except Exception as error:
            reason = f"cannot be cloned: {_shown(error)}"
        if reason is not None:
            raise _not_mergeable(f"adds up the workers' metrics, but {metric.name} {reason}")


def examples(program: Program) -> tf.data.Dataset:
    """The evaluation examples for Keras' exact evaluation.

    It gives metrics the labels and weights as the data has them. With labels of shape (batch,) and predictions of shape
    (batch, 1), a metric such as mae would count the mean of each batch as one value, whatever the size of the batch is.
    """
    dataset = program.evaluation_examples
    prediction = program.prediction_spec
    _, *label_and_weight = dataset.element_spec
    if any(tf.nest.is_nested(spec) for spec in label_and_weight):  # by output; Keras refuses it
        return dataset
    if prediction.shape.rank != 2 or all(spec.shape.rank != 1 for spec in label_and_weight):
        return dataset

    def aligned(features: Any, label: tf.Tensor, weight: tf.Tensor | None = None) -> tuple[Any, ...]:
        label, _, weight = keras.aligned(label, prediction, weight)
        return (features, label) if weight is None else (features, label, weight)

    return dataset.map(aligned)


def _not_mergeable(reason: str) -> ConfigError:
    return ConfigError([Problem("evaluation", f"'validation' {reason}; choose exact")])


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
