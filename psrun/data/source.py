"""What a source of examples must offer. Any class with these members can be named by `data._target_`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import tensorflow as tf

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

        A source may take an optional argument `shard`, the index of a worker (an int64 scalar) and how many there are:
        then each example of a pass goes to one worker, and all workers have the same seed. `data.visitation=once`
        needs it.
        """
        ...

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        """Every evaluation example once, in an order that never changes; the last batch may be smaller.

        A source may take an optional argument `shard`, the index of a shard (an int64 scalar) and how many there are:
        then only the examples of that shard come. Where it does not, all are read for each shard.
        """
        ...


Arrays = tuple[Mapping[str, np.ndarray], np.ndarray]  # features by name and label, examples along the first axis


class ArraySource:
    """Base of sources whose examples are arrays in memory: batches are gathered by shuffled row numbers."""

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
        self.num_train_examples: int | None = len(train[1])
        self.num_eval_examples: int = len(evaluation[1])

    def train(self, *, batch_size: int, seed: tf.Tensor, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        return _gathered(_shuffled(len(self._train[1]), batch_size, seed, shard), self._train)

    def evaluation(self, *, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        rows = tf.data.Dataset.range(self.num_eval_examples)
        if shard is not None:
            index, count = shard
            rows = rows.shard(count, index)
        return _gathered(rows.batch(batch_size), self._evaluation)


# Of the block cipher. With TensorFlow's default, 4, neighbouring seeds may give the same order.
_ROUNDS = 12


def _shuffled(num_rows: int, batch_size: int, seed: tf.Tensor, shard: tuple[tf.Tensor, int] | None) -> tf.data.Dataset:
    """Endless batches of row numbers: epoch after epoch each row once, each time in another order.

    The order is computed, a batch at once, by a cipher whose key is the seed and the epoch: a third of what it costs to
    shuffle single numbers and batch them.
    """
    low, high = tf.cast(seed % 2**31, tf.int32), tf.cast(seed // 2**31 % 2**31, tf.int32)

    def rows(batch: tf.Tensor) -> tf.Tensor:
        place = batch * batch_size + tf.range(batch_size, dtype=tf.int64)
        epoch = tf.cast(place // num_rows % 2**31, tf.int32)
        keys = tf.stack([tf.broadcast_to(low, epoch.shape), tf.broadcast_to(high, epoch.shape), epoch], axis=1)
        # The public `index_shuffle` does not take a key for each number, as it says it does.
        return tf.raw_ops.RandomIndexShuffle(
            index=place % num_rows, seed=keys, max_index=tf.constant(num_rows - 1, tf.int64), rounds=_ROUNDS
        )

    batches = tf.data.Dataset.counter()
    if shard is not None:
        index, count = shard
        batches = batches.shard(count, index)
    return batches.map(rows)


def _gathered(rows: tf.data.Dataset, arrays: Arrays) -> tf.data.Dataset:
    """Batches of rows of `arrays`. Gathering them costs a tenth of slicing single examples and batching those."""
    columns = tf.nest.map_structure(_column, arrays)
    return rows.map(lambda batch: tf.nest.map_structure(lambda column: column(batch), columns))


def _column(array: np.ndarray) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function of row numbers to those rows of `array`.

    The arrays travel to every worker inside the pipeline's graph. Strings are slow there: they go as numbers and a
    list of the distinct ones.
    """
    if array.dtype.kind != "S":
        values = tf.constant(array)
        return lambda batch: tf.gather(values, batch)
    distinct, codes = np.unique(array, return_inverse=True)
    strings, numbers = tf.constant(distinct), tf.constant(codes.reshape(array.shape).astype(np.int32))
    return lambda batch: tf.gather(strings, tf.gather(numbers, batch))
