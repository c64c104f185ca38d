"""Who has interacted with what: the users and items of all examples, with the features of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.config.choices import EvaluationChoice
from psrun.config.schema import did_you_mean
from psrun.data.source import ByNumber, DataSource, evaluation_batches
from psrun.errors import ConfigError, Problem
from psrun.metrics.retrieval import Pairs
from psrun.models.model import Model
from psrun.program import list_inputs

ITEM = "evaluation.item"
_READ = 8192  # examples at a time


class _Distinct:
    """The distinct values of a feature, numbered in the order of their first examples, with features of these.

    Args:
      kept: the features.
    """

    def __init__(self, feature: str, kept: Sequence[str]) -> None:
        self._feature = feature
        self._kept = kept
        self._numbers: dict[Any, int] = {}
        self._parts: list[dict[str, Any]] = []

    def add(self, features: Mapping[str, Any]) -> np.ndarray:
        """The numbers of the values of a batch."""
        values, first, inverse = np.unique(_keys(features[self._feature]), return_index=True, return_inverse=True)
        is_new = [key not in self._numbers for key in values.tolist()]
        for key in values[is_new].tolist():
            self._numbers[key] = len(self._numbers)
        if any(is_new):
            rows = tf.constant(first[is_new])
            self._parts.append({name: tf.gather(features[name], rows) for name in self._kept})
        return np.array([self._numbers[key] for key in values.tolist()], np.int64)[inverse]

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def features(self) -> dict[str, Any]:
        """Of each value, (len, ...)."""
        return {name: tf.concat([part[name] for part in self._parts], axis=0) for name in self._kept}


@dataclass(frozen=True)
class Interactions:
    """The interactions of training and of evaluation examples.

    Attributes:
      users, items: features of each user and each item, by name.
      num_users, num_items: each has numbers from 0 on.
      trained: the pairs of the training examples.
      evaluated: those of the evaluation examples, in their order.
      label, weight: of the evaluation examples.
      popularity: the number of training examples of each item.
    """

    users: Mapping[str, Any]
    items: Mapping[str, Any]
    num_users: int
    num_items: int
    trained: Pairs
    evaluated: tuple[np.ndarray, np.ndarray]
    label: np.ndarray
    weight: np.ndarray
    popularity: np.ndarray


def of_run(evaluation: EvaluationChoice, source: DataSource, model: Model) -> Interactions:
    """The interactions of a run, by the features that its evaluation names; raises as `read`."""
    user = evaluation.user
    item = evaluation.item
    assert user is not None
    assert item is not None
    item_features = model.towers.item_features if model.towers else tuple(evaluation.item_features or [item])
    if item in source.features and item not in item_features:
        message = f"is '{item}', which is no feature of items; these are {', '.join(item_features)}"
        raise ConfigError([Problem(ITEM, message)])
    return read(source, user, item, item_features)


def read(source: DataSource, user: str, item: str, item_features: Sequence[str]) -> Interactions:
    """Reads all examples once.

    The features of an item are those of its first example; of a user, those of the first evaluation example or, without
    one, of the first training example.

    Args:
      item_features: that depend on the item; all others depend on the user.

    Raises:
      ConfigError: training examples cannot be read by number, or the data lacks a feature.
    """
    problems = [
        Problem(key, f"is '{name}', but the data has no such feature.{did_you_mean(name, source.features)}")
        for key, name in (("evaluation.user", user), (ITEM, item))
        if name not in source.features
    ]
    if problems:
        raise ConfigError(problems)
    if not isinstance(source, ByNumber):
        message = "needs training examples that can be read by number, as of data=table; set it to null"
        raise ConfigError([Problem("evaluation.candidates", message)])
    others = [name for name in source.features if name not in item_features]
    users = _Distinct(user, others)
    items = _Distinct(item, list(item_features))
    evaluated: list[tuple[np.ndarray, ...]] = []
    for features, label, *weight in evaluation_batches(source, _READ):
        batch = list_inputs.ragged(features)
        label = label.numpy().reshape(-1)
        weights = weight[0].numpy().reshape(-1) if weight else np.ones(len(label))
        evaluated.append((users.add(batch), items.add(batch), label, weights))
    trained = [(users.add(features), items.add(features)) for features in _training_features(source)]
    user_numbers, item_numbers = (np.concatenate(each) for each in zip(*trained))
    of_eval = [np.concatenate(each) for each in zip(*evaluated)] if evaluated else [np.zeros(0, np.int64)] * 4
    return Interactions(
        users.features,
        items.features,
        len(users),
        len(items),
        Pairs.of(user_numbers, item_numbers),
        (of_eval[0], of_eval[1]),
        of_eval[2],
        of_eval[3],
        np.bincount(item_numbers, minlength=len(items)),
    )


def _training_features(source: ByNumber) -> Iterator[Mapping[str, Any]]:
    """The features of all training examples, in batches."""
    count = source.num_train_examples
    numbers = tf.data.Dataset.range(-(-count // _READ)).map(
        lambda number: (number, tf.range(number * _READ, tf.minimum((number + 1) * _READ, count)))
    )
    for _, _, (features, *_) in source.read(numbers):
        yield list_inputs.ragged(features)


def _keys(values: tf.Tensor) -> np.ndarray:
    flat = tf.reshape(values, [-1]).numpy()
    return flat.astype(np.bytes_) if flat.dtype == object else flat
