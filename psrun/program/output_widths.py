"""Checks the shape of a model's outputs against the labels.

Keras' losses and metrics broadcast: two columns of predictions and one of labels train without an error, as do labels
(batch,) and predictions (batch, 1, 1); a class without a column is an error of a kernel on a worker in the middle of
the training.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource, task_of
from psrun.errors import ConfigError, Problem
from psrun.models.model import Model

_OF_LOSS = ("train_step", "compute_loss")  # a model that overrides one of these is not checked


def check(prediction: Any, label: Any, model: Model, source: DataSource) -> None:
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
        why = f"labels have shape {_shown(expected)} (task={task})"
    if not fits:
        remedy = f"end the model with Dense({width})"
        if width is None:
            remedy = "give the dataset the shape of its labels, such as tf.TensorSpec((None, 1), tf.float32)"
        raise ConfigError([Problem("model", f"returns predictions of shape {_shown(predicted)}, but {why}: {remedy}")])
    # Keras adds or removes one last axis of size 1, and would pair each label with each prediction for more. psrun's
    # metrics add one to labels (batch,) only.
    if abs(predicted.rank - expected.rank) > 1 or expected.rank > max(predicted.rank, 2):
        shapes = f"predictions of shape {_shown(predicted)}, but labels have shape {_shown(expected)} (task={task})"
        raise ConfigError([Problem("model", f"returns {shapes}: give both as many axes")])


def _essential(shape: tf.TensorShape) -> list[int | None]:
    """The shape of one example, without trailing axes of size 1, which Keras adds and removes."""
    sizes = [*shape[1:]]
    while sizes and sizes[-1] == 1:
        sizes.pop()
    return sizes


def _fit(predicted: list[int | None], expected: list[int | None]) -> bool:
    return len(predicted) == len(expected) and all(a == b or None in (a, b) for a, b in zip(predicted, expected))


def _shown(shape: tf.TensorShape) -> str:
    return f"({', '.join(['batch', *('?' if size is None else str(size) for size in shape[1:])])})"
