"""Who has interacted with what: the users and items of all examples, with the features of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.config.choices import EvaluationChoice
from psrun.data.source import ByNumber, DataSource, evaluation_batches
from psrun.errors import ConfigError, Problem
from psrun.models.model import Model
from psrun.program import batch_checks
from psrun.recsys import evaluation_keys
from psrun.recsys.metrics.retrieval import Pairs

_READ = 8192  # examples at a time


class _Distinct:
    """The distinct values of a feature, numbered in the order of their first examples."""

    def __init__(self, feature: str) -> None:
        self._feature = feature
        self._numbers: dict[Any, int] = {}

    def add(self, features: Mapping[str, Any]) -> np.ndarray:
        """The numbers of the values of a batch."""
        values, inverse = np.unique(_keys(features[self._feature]), return_inverse=True)
        for key in values.tolist():
            self._numbers.setdefault(key, len(self._numbers))
        return np.array([self._numbers[key] for key in values.tolist()], np.int64)[inverse]

    def __len__(self) -> int:
        return len(self._numbers)


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
        raise ConfigError([Problem(evaluation_keys.ITEM, message)])
    return read(source, user, item, item_features)


def read(source: DataSource, user: str, item: str, item_features: Sequence[str]) -> Interactions:
    """Reads all examples, and the training examples that features are taken of once more.

    The features of a user are those of the first evaluation example or, without one, of the last training example, in
    the order of the files: a history is the newest one. Those of an item are those of its last training example or,
    without one, of its first evaluation example.

    Args:
      item_features: that depend on the item; all others depend on the user.

    Raises:
      ConfigError: training examples cannot be read by number; or the data lacks a feature, or has several values of it
        for an example.
    """
    named = (("evaluation.user", user), (evaluation_keys.ITEM, item))
    problems = [problem for key, name in named for problem in evaluation_keys.problems(key, name, source.features)]
    if user == item:
        problems.append(Problem(evaluation_keys.ITEM, f"is '{item}', as is evaluation.user; choose another feature"))
    if problems:
        raise ConfigError(problems)
    if not isinstance(source, ByNumber):
        message = "needs training examples that can be read by number, as of data=table; set it to null"
        raise ConfigError([Problem("evaluation.candidates", message)])
    users = _Distinct(user)
    items = _Distinct(item)
    of_users = [name for name in source.features if name not in item_features]
    first_users = _Rows(of_users)
    first_items = _Rows(item_features)
    evaluated: list[tuple[np.ndarray, ...]] = []
    for features, label, *weight in evaluation_batches(source, _READ):
        batch = batch_checks.ragged_features(features)
        if isinstance(label, Mapping) or label.dtype == tf.string:
            message = "needs one number as the label of an example; set it to null"
            raise ConfigError([Problem("evaluation.candidates", message)])
        label = label.numpy().reshape(-1)
        weights = weight[0].numpy().reshape(-1) if weight else np.ones(len(label))
        evaluated.append((users.add(batch), items.add(batch), label, weights))
        first_users.add(evaluated[-1][0], batch)
        first_items.add(evaluated[-1][1], batch)
    every = np.arange(source.num_train_examples)
    trained = [(users.add(features), items.add(features)) for features in _examples(source, every)]
    user_numbers, item_numbers = (np.concatenate(each) for each in zip(*trained))
    of_eval = [np.concatenate(each) for each in zip(*evaluated)] if evaluated else [np.zeros(0, np.int64)] * 4
    last_user = _last(user_numbers, len(users))
    last_item = _last(item_numbers, len(items))
    last_user[first_users.numbers] = -1
    first_items.drop(np.flatnonzero(last_item >= 0))
    return Interactions(
        first_users.joined(source, last_user),
        first_items.joined(source, last_item),
        len(users),
        len(items),
        Pairs.of(user_numbers, item_numbers),
        (of_eval[0], of_eval[1]),
        of_eval[2],
        of_eval[3],
        np.bincount(item_numbers, minlength=len(items)),
    )


class _Rows:
    """Features of users or items, each of one example.

    Attributes:
      numbers: of those that features were added of.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: set[int] = set()
        self._parts: list[tuple[np.ndarray, dict[str, Any]]] = []

    @property
    def numbers(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.int64), *(numbers for numbers, _ in self._parts)])

    def add(self, numbers: np.ndarray, features: Mapping[str, Any]) -> None:
        """Adds the features of the first example of those that are new in a batch."""
        values, first = np.unique(numbers, return_index=True)
        is_new = np.array([each not in self._known for each in values.tolist()])
        self._known.update(values.tolist())
        if is_new.any():
            rows = tf.constant(first[is_new])
            self._parts.append((values[is_new], {name: tf.gather(features[name], rows) for name in self._names}))

    def drop(self, numbers: np.ndarray) -> None:
        """Removes those with these numbers."""
        parts = []
        for own, features in self._parts:
            rows = np.flatnonzero(~np.isin(own, numbers))
            if len(rows):
                parts.append((own[rows], {name: tf.gather(each, rows) for name, each in features.items()}))
        self._parts = parts

    def joined(self, source: ByNumber, last: np.ndarray) -> dict[str, Any]:
        """The features by number, those that were not added from training examples.

        Args:
          last: the training example of each number; -1 for those that were added.
        """
        from_training = np.flatnonzero(last >= 0)
        order = from_training[np.argsort(last[from_training])]
        read = [*_examples(source, last[order])] if len(order) else []
        numbers = np.concatenate([self.numbers, order])
        places = tf.constant(np.argsort(numbers))
        parts = [*(features for _, features in self._parts), *read]
        return {name: tf.gather(tf.concat([part[name] for part in parts], axis=0), places) for name in self._names}


def _last(numbers: np.ndarray, count: int) -> np.ndarray:
    """The last place of each number from 0 to count - 1; -1 if it is not there."""
    last: np.ndarray = np.full(count, -1, np.int64)
    last[numbers] = np.arange(len(numbers))
    return last


def _examples(source: ByNumber, numbers: np.ndarray) -> Iterator[Mapping[str, Any]]:
    """The features of training examples with these numbers, in batches."""
    parts = tf.data.Dataset.from_tensor_slices(numbers).batch(_READ).enumerate()
    for _, _, (features, *_) in source.read(parts):
        yield batch_checks.ragged_features(features)


def _keys(values: tf.Tensor) -> np.ndarray:
    flat = tf.reshape(values, [-1]).numpy()
    return flat.astype(np.bytes_) if flat.dtype == object else flat
