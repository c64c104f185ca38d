"""What a source of examples must offer. Any class with these members can be named by `data._target_`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import tensorflow as tf

Task = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True)
class Feature:
    """One named input: the shape and dtype of one example's value, and the values it can take where they are known."""

    shape: tuple[int, ...]
    dtype: tf.DType
    vocabulary: tuple[str, ...] | tuple[int, ...] | None = None


class DataSource(Protocol):
    """Examples to train on and to evaluate.

    Attributes:
      features: the inputs by name; the model is built from them.
      task: what the label is: 'binary' (float 0 or 1, shape (1,)), 'multiclass' (int64, shape ()), or
        'regression' (float, shape (1,)). Decides loss and metrics where the model does not.
      num_classes: with 'multiclass', how many there are; 1 otherwise.
      num_train_examples: how many there are to train on, or None where they never end.
      num_eval_examples: how many `evaluation` yields.
      facts: numbers about the data that belong in the run's result.
    """

    features: Mapping[str, Feature]
    task: Task
    num_classes: int
    num_train_examples: int | None
    num_eval_examples: int
    facts: Mapping[str, int | float | str]

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        """Endless shuffled batches ({name: (batch_size, *shape)}, label). No Python in the pipeline: it runs on workers.

        Args:
          batch_size: examples a batch; every batch is full.
          seed: int64 scalar; another one on each worker.
        """
        ...

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        """Every evaluation example once, in an order that never changes; the last batch may be smaller."""
        ...


class ArraySource:
    """Base of sources whose examples are arrays in memory: batches are gathered by shuffled row numbers."""

    def __init__(
        self,
        *,
        features: Mapping[str, Feature],
        task: Task,
        train: tuple[Mapping[str, object], object],
        evaluation: tuple[Mapping[str, object], object],
        num_classes: int = 1,
        facts: Mapping[str, int | float | str] | None = None,
    ) -> None:
        self.features = features
        self.task: Task = task
        self.num_classes = num_classes
        self.facts = facts or {}
        self._train, self._evaluation = train, evaluation
        self.num_train_examples: int | None = len(train[1])  # type: ignore[arg-type]
        self.num_eval_examples: int = len(evaluation[1])  # type: ignore[arg-type]

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        rows = tf.data.Dataset.range(self.num_train_examples).shuffle(self.num_train_examples, seed=seed)
        return _gathered(rows.repeat().batch(batch_size, drop_remainder=True), self._train)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        return _gathered(tf.data.Dataset.range(self.num_eval_examples).batch(batch_size), self._evaluation)


def _gathered(rows: tf.data.Dataset, arrays: tuple[Mapping[str, object], object]) -> tf.data.Dataset:
    # Gathering a batch of rows costs a tenth of slicing single examples and batching them again.
    tensors = tf.nest.map_structure(tf.constant, arrays)
    return rows.map(lambda batch: tf.nest.map_structure(lambda tensor: tf.gather(tensor, batch), tensors))
