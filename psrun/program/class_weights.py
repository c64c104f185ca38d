"""Weights of examples by their class, as with Keras' `fit(class_weight=...)`: in training only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from psrun.data.source import DataSource, task_of
from psrun.errors import ConfigError, Problem

_KEY = "model.class_weight"


def by_class(class_weight: Mapping[Any, float], source: DataSource, names: Sequence[str] | None) -> list[float]:
    """The weights of the classes 0, 1 and so on, from those by the number or the name of the class.

    Raises:
      ConfigError: the weights do not match the classes of the data.
    """
    task = task_of(source)
    if task == "regression":
        raise ConfigError([Problem(_KEY, "requires a classification task; got task=regression")])
    numbers = {name: number for number, name in enumerate(names or ())}
    weights = {
        numbers.get(str(name), int(name) if str(name).isdigit() else name): float(weight)
        for name, weight in class_weight.items()
    }
    count = source.num_classes if task == "multiclass" else 2 if task == "binary" else len(weights)
    if set(weights) != set(range(count)):
        classes = ", ".join(map(str, weights))
        message = f"has weights for {classes}, must have one for each of the classes 0 to {count - 1}"
        raise ConfigError([Problem(_KEY, message)])
    return [weights[number] for number in range(count)]


def weight_of(weights: list[float], label: Any, weight: tf.Tensor | None = None) -> tf.Tensor:
    """The weights of the examples of a batch by their class, multiplied by their own weights.

    Args:
      label: class numbers, (batch,) or (batch, 1), or one-hot, (batch, classes).
      weight: (batch,) or (batch, 1); None for 1.

    Raises:
      ConfigError: there are several labels, one per output.
    """
    if tf.nest.is_nested(label):
        raise ConfigError([Problem(_KEY, "requires a model with one output; the labels have several")])
    if label.shape.rank == 1:
        classes = label
    elif label.shape[-1] == 1:
        classes = tf.squeeze(label, axis=-1)
    else:
        classes = tf.argmax(label, axis=-1)
    if classes.dtype.is_floating:
        classes = tf.round(classes)
    by_example = tf.gather(tf.constant(weights), tf.cast(classes, tf.int64))
    if weight is None:
        return by_example
    return weight * tf.reshape(tf.cast(by_example, weight.dtype), tf.shape(weight))
