"""Labels that are not class numbers: class k is the k-th value of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.data.source import DataSource
from psrun.errors import ConfigError, Problem

KEY = "data.label_vocabulary"
Vocabulary = tuple[str, ...] | tuple[int, ...]
_BUCKETS = 2**63 - 1


def own_vocabulary(source: DataSource) -> Vocabulary | None:
    """The vocabulary that a source itself uses to convert labels to class numbers; None if it declares none."""
    vocabulary = getattr(source, "label_vocabulary", None)
    return None if vocabulary is None else tuple(vocabulary)


def class_names(source: DataSource, vocabulary: Vocabulary | None) -> tuple[str, ...] | None:
    """The names of the classes 0, 1, ...; None without names.

    Args:
      vocabulary: of the configuration.
    """
    values = own_vocabulary(source) or vocabulary
    return None if values is None else tuple(map(str, values))


def problems(source: DataSource, vocabulary: Vocabulary | None) -> list[Problem]:
    """Contradictions between the configured vocabulary and the labels of the source."""
    if vocabulary is None:
        return []
    own = own_vocabulary(source)
    if own is not None and own != vocabulary:
        return [Problem(KEY, f"is {_shown(vocabulary)}, but the labels of the data source are {_shown(own)}")]
    return fitting(source.task, source.num_classes if source.task == "multiclass" else None, vocabulary)


def fitting(task: str, num_classes: int | None, vocabulary: Sequence[Any]) -> list[Problem]:
    """Contradictions between a task and a vocabulary of labels.

    Args:
      num_classes: of a multiclass task; None: the size of the vocabulary.
    """
    count = len(vocabulary)
    if task == "regression":
        return [Problem(KEY, "requires a classification task; got data.task=regression: set it to null")]
    if task == "binary" and count != 2:
        return [Problem(KEY, f"has {count} values; a binary task has 2: set data.task=multiclass for more")]
    if task == "multiclass" and num_classes not in (None, count):
        return [Problem(KEY, f"has {count} values, but num_classes is {num_classes}; make them equal")]
    return []


def to_class_numbers(source: DataSource, vocabulary: Vocabulary | None) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """A function from a batch of the source's labels to class numbers.

    It uses no lookup table, which the chief would have to create on each worker. It raises InvalidArgumentError with
    the label if a label is not in the vocabulary.

    Returns:
      None if the source returns class numbers.

    Raises:
      ConfigError: the labels have another type than the vocabulary.
    """
    if vocabulary is None or own_vocabulary(source) is not None:
        return None
    with tf.init_scope():
        _, label, *_ = source.train(batch_size=1, seed=tf.constant(0, tf.int64)).element_spec
        if not isinstance(label, tf.TensorSpec):
            raise ConfigError([Problem(KEY, "requires one label per example; the data source has several")])
        if (label.dtype == tf.string) != isinstance(vocabulary[0], str):
            message = f"is {_shown(vocabulary)}, but the labels of the data source are of type {label.dtype.name}"
            raise ConfigError([Problem(KEY, message)])
        return _lookup(vocabulary, multiclass=source.task == "multiclass")


def check_specs(label: Any) -> None:
    """Raises ConfigError if the labels (a nest of specs) are strings, or their number of axes is unknown."""
    for spec in tf.nest.flatten(label):
        if spec.dtype == tf.string:
            message = "is null, but the labels are strings; name the classes, as in data.label_vocabulary=[no,yes]"
            raise ConfigError([Problem(KEY, message)])
        if spec.shape.rank is None:
            example = f"output_signature=tf.TensorSpec((None, 1), tf.{spec.dtype.name})"
            message = f"the labels have no known shape in the batches: give the dataset one, such as {example}"
            raise ConfigError([Problem("data", message)])


def _lookup(vocabulary: Vocabulary, *, multiclass: bool) -> Callable[[tf.Tensor], tf.Tensor]:
    words = np.array(vocabulary)
    shown = _shown(vocabulary)
    keys = _keys(tf.constant(vocabulary)).numpy()
    order = np.argsort(keys)

    def convert(label: tf.Tensor) -> tf.Tensor:
        label = tf.reshape(label, [-1])
        places = tf.minimum(tf.searchsorted(keys[order], _keys(label)), len(order) - 1)
        numbers = tf.gather(order, places)
        is_known = tf.equal(tf.cast(tf.gather(words, numbers), label.dtype), label)
        unknown = tf.boolean_mask(label, tf.logical_not(is_known))
        message = f"a label is not in {KEY}={shown}:"
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_known), [message, unknown[:1]])]):
            return tf.identity(numbers) if multiclass else tf.cast(numbers, tf.float32)[:, tf.newaxis]

    return convert


def _keys(values: tf.Tensor) -> tf.Tensor:
    """Keys for the binary search of values. Of two values with the same key, at most one is found."""
    return tf.strings.to_hash_bucket_fast(values, _BUCKETS) if values.dtype == tf.string else tf.cast(values, tf.int64)


def _shown(vocabulary: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, vocabulary))}]"
