"""What a source of examples must offer. Any class with these members can be named by `data._target_`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from psrun.data.order import Order

Task = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True)
class Feature:
    """One named input, as it comes from the outside: what is done to it before a network sees it is the model's part.

    Attributes:
      shape, dtype: of one example's value.
      vocabulary: the values it can take, where they are known; or a file with one of them a line, for long ones.
      num_buckets: of strings without a vocabulary: how many ids they are hashed to.
      logarithm: of counts, whether models take log(1 + x) of them, and 0 of those below 0.
      mean, deviation: of floats (of their logarithms, where models take those), over the training examples; models
        standardise by them.
    """

    shape: tuple[int, ...]
    dtype: tf.DType
    vocabulary: tuple[str, ...] | tuple[int, ...] | Path | None = None
    num_buckets: int | None = None
    logarithm: bool = False
    mean: float = 0.0
    deviation: float = 1.0


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
      warnings: what a person should know of it; a source may lack this.
    """

    features: Mapping[str, Feature]
    task: Task
    num_classes: int
    num_train_examples: int | None
    num_eval_examples: int
    facts: Mapping[str, int | float | str]

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        """Endless shuffled batches ({name: (batch_size, *shape)}, label), without Python: the pipeline runs on workers.

        Args:
          batch_size: examples a batch; every batch is full.
          seed: int64 scalar; another one on each worker.
        """
        ...

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        """Every evaluation example once, in an order that never changes; the last batch may be smaller.

        A source may take an optional argument `shard`, the index of a shard (an int64 scalar) and how many there are:
        then only the examples of that shard come. Where it does not, all are read for each shard.
        """
        ...


# The number of a batch, int64, and those of its examples, int64 of shape (n,); read, those and the examples themselves.
Batches: TypeAlias = tf.data.Dataset


class ByNumber:
    """Base of sources whose training examples can be read by their numbers, from 0 to num_train_examples - 1.

    That makes them fit for `data.visitation=once`: whoever runs a step is told which batch it is to read.
    """

    num_train_examples: int

    def block(self, batch_size: int) -> int:
        """How many examples with consecutive numbers are best read together, for batches of that size."""
        return 1

    def read(self, batches: Batches) -> Batches:
        """Reads examples, without Python: the pipeline runs on workers.

        Args:
          batches: (number, numbers) of each batch.

        Returns:
          (number, numbers, ({name: (n, *shape)}, label)) of each, in the same order.
        """
        raise NotImplementedError

    def order(self, batch_size: int, *, whole_passes: bool = False) -> Order:
        return Order(self.num_train_examples, batch_size, self.block(batch_size), whole_passes)

    def batches(self, numbers: tf.data.Dataset, order: Order, seed: tf.Tensor) -> Batches:
        """The batches with these numbers, as `read` gives them."""
        return self.read(numbers.map(lambda number: (number, order.numbers(number, seed))))

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        read = self.batches(tf.data.Dataset.counter(), self.order(batch_size), seed)
        return read.map(lambda number, numbers, examples: examples)


# Features by name and label, examples along the first axis.
Arrays: TypeAlias = tuple[Mapping[str, np.ndarray], np.ndarray]


class ArraySource(ByNumber):
    """Base of sources whose examples are arrays in memory: batches are gathered by their numbers."""

    def __init__(
        self,
        *,
        features: Mapping[str, Feature],
        task: Task,
        train: Arrays,
        evaluation: Arrays,
        num_classes: int = 1,
        facts: Mapping[str, int | float | str] | None = None,
    ) -> None:
        self.features = features
        self.task: Task = task
        self.num_classes = num_classes
        self.facts = facts or {}
        self._train, self._evaluation = train, evaluation
        self.num_train_examples: int = len(train[1])
        self.num_eval_examples: int = len(evaluation[1])

    def read(self, batches: Batches) -> Batches:
        gathered = _gathering(self._train)
        return batches.map(lambda number, numbers: (number, numbers, gathered(numbers)))

    def evaluation(self, *, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(self.num_eval_examples)
        if shard is not None:
            index, count = shard
            numbers = numbers.shard(count, index)
        return numbers.batch(batch_size).map(_gathering(self._evaluation))


def _gathering(arrays: Arrays) -> Callable[[tf.Tensor], Any]:
    """A function of row numbers to those rows. It costs a tenth of slicing single examples and batching those."""
    columns = tf.nest.map_structure(_column, arrays)
    return lambda numbers: tf.nest.map_structure(lambda column: column(numbers), columns)


def _column(array: np.ndarray) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function of row numbers to those rows of `array`.

    The arrays travel to every worker inside the pipeline's graph. Strings are slow there: they go as numbers and a
    list of the distinct ones.
    """
    if array.dtype.kind != "S":
        values = tf.constant(array)
        return lambda numbers: tf.gather(values, numbers)
    distinct, codes = np.unique(array, return_inverse=True)
    strings, places = tf.constant(distinct), tf.constant(codes.reshape(array.shape).astype(np.int32))
    return lambda numbers: tf.gather(strings, tf.gather(places, numbers))
