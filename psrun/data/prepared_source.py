"""The base of sources with prepared rows of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from psrun.data import files
from psrun.data.preparation import PreparedSet
from psrun.data.source import Batches, ByNumber, Convert, as_read
from psrun.errors import ConfigError, DataError, Problem


class PreparedSource(ByNumber):
    """Base of sources with rows of files that were prepared once (see `psrun.data.preparation`).

    A run on prepared files starts immediately. A subclass defines its features and its task.

    Args:
      train: the set of the training files; with a split, it has a second part, the evaluation examples.
      evaluation: the set of the evaluation files; None without such files.
      label: the column that is the label; None: there is none, and the labels are 0.
      weight: the column with the weights of the examples; None for none. All other columns are features.

    Raises:
      DataError: there are no training examples.
    """

    facts: Mapping[str, Any]

    def __init__(
        self, train: PreparedSet, evaluation: PreparedSet | None, *, label: str | None, weight: str | None = None
    ) -> None:
        self._label, self._weight = label, weight
        self._train = train.parts["train"]
        self._evaluation = evaluation.rows if evaluation is not None else train.parts.get("eval")
        self.num_train_examples = self._train.num_examples
        self.num_eval_examples = self._evaluation.num_examples if self._evaluation else 0
        sets = [each for each in (train, evaluation) if each is not None]
        self.facts = {"num_bad_rows": sum(each.num_bad for each in sets)}
        self.warnings = tuple(
            f"{each.num_bad:,} malformed rows skipped, the first: {each.bad[0]}" for each in sets if each.num_bad
        )
        if unlabeled := sum(each.num_unlabeled for each in sets):
            self.facts = {**self.facts, "num_unlabeled_rows": unlabeled}
        truncated = {name: sum(each.num_truncated.get(name, 0) for each in sets) for name in train.num_truncated}
        if truncated:  # of the features that are lists
            self.facts = {**self.facts, "num_truncated_rows": truncated}
        self.warnings += tuple(
            f"{name}: {count:,} rows have more than max_values={self._train.columns[name].max_values} values; "
            "the first values are kept"
            for name, count in truncated.items()
            if count
        )

    def block(self, batch_size: int) -> int:
        return self._train.block(batch_size)

    def read(self, batches: Batches, convert: Convert = as_read) -> tf.data.Dataset:
        return self._train.read(batches, lambda number, numbers, row: convert(number, numbers, self._example(row)))

    def evaluation(self, *, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        assert self._evaluation is not None
        return self._evaluation.in_order(batch_size, shard, lambda *columns: self._example(columns[2]))

    def _example(self, columns: dict[str, tf.Tensor]) -> tuple[Any, ...]:
        """The features, the label and, where the set has them, the weights of rows."""
        others = (self._label, self._weight)
        features = {name: values for name, values in columns.items() if name not in others}
        weights = [values[:, 0] for name, values in columns.items() if name == self._weight]
        if self._label is None or self._label not in columns:
            return features, tf.zeros([tf.shape(next(iter(columns.values())))[0], 1])
        return features, columns[self._label], *weights


def found(
    path: str, eval_path: str | None, max_bad_rows: int, *, overlapping: bool = False
) -> tuple[list[str], list[str]]:
    """The training files and the evaluation files.

    Args:
      overlapping: whether a file may be both.

    Raises:
      ConfigError: a file is in both, or `max_bad_rows` is below 0.
      DataError: there are no files.
    """
    if max_bad_rows < 0:
        raise ConfigError([Problem("data.max_bad_rows", f"is {max_bad_rows}, must be 0 or more")])
    train, evaluation = files.find(path), files.find(eval_path) if eval_path else []
    paths = {files.path(name) for name in train}
    both = [name for name in evaluation if files.path(name) in paths]
    if both and not overlapping:
        raise ConfigError([Problem("data.eval_path", f"{both[0]} is also a training file; use separate files")])
    return train, evaluation


def checked(prepared: PreparedSet, name: str, *, several: bool) -> PreparedSet:
    """The set of files, of which `name` is the first.

    Raises:
      DataError: there are no rows in it.
    """
    if not prepared.num_examples:
        labels = ", but rows without a label" if prepared.num_unlabeled else ""
        raise DataError(f"there is no row in {name}{' and the others' * several}{labels}")
    return prepared
