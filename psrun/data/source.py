"""What a source of examples must offer. Any class with these members can be named by `data._target_`."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from psrun.data.order import Order
from psrun.errors import ConfigError, Problem

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


def task_of(source: DataSource) -> str | None:
    """The source's task; None where it has none, and `model.loss` and `model.metrics` take its place."""
    return getattr(source, "task", None)


class DataSource(Protocol):
    """Examples to train on and to evaluate.

    Attributes:
      features: the inputs by name; the model is built from them.
      task: what the label is: 'binary' (float 0 or 1, shape (1,)), 'multiclass' (int64, shape ()), or
        'regression' (float, shape (1,)). Decides loss and metrics where the model does not, and what the model
        returns: a probability, one a class, or a number. With `model.loss` and `model.metrics` a source may lack
        this, or have another one.
      num_classes: with 'multiclass', how many there are; 1 otherwise.
      num_train_examples: how many there are to train on, or None where they never end.
      num_eval_examples: how many `evaluation` yields.
      facts: numbers about the data that belong in the run's result.
      warnings: what a person should know of it; a source may lack this.
      label_vocabulary: what the classes 0, 1, ... are called where labels are such numbers; a source may lack this. One
        whose labels are other values, strings or integers, leaves it out: `data.label_vocabulary` names those.
    """

    features: Mapping[str, Feature]
    task: Task
    num_classes: int
    num_train_examples: int | None
    num_eval_examples: int
    facts: Mapping[str, Any]

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        """Endless shuffled batches ({name: (batch_size, *shape)}, label), without Python: the pipeline runs on workers.

        A third element are weights of the examples, (batch_size,). Where a model has several outputs, label and weights
        are dicts by output.

        Args:
          batch_size: examples a batch; every batch is full.
          seed: int64 scalar; another one on each worker.
        """
        ...

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        """Every evaluation example once, in an order that never changes; the last batch may be smaller.

        A source may take an optional argument `shard`, the index of a shard (an int64 scalar) and how many there are:
        then only the batches of that shard come. Shards are consecutive: all of them, one after the other, are what
        comes without the argument (`shard_of` returns their range). Where a source does not take it, all
        examples are read for each shard.
        """
        ...


MEMBERS = ("features", "num_train_examples", "num_eval_examples", "facts", "train", "evaluation")


def checked_dataset(made: Any, source: DataSource, method: str) -> tf.data.Dataset:
    """What `source` returned when its batches were asked for by `method`.

    Raises:
      ConfigError: it is not a dataset.
    """
    if not isinstance(made, tf.data.Dataset):
        message = f"{type(source).__name__}.{method} returned {type(made).__name__}"
        raise ConfigError([Problem("data", f"{message}, not a tf.data.Dataset of batches (features by name, label)")])
    return made


def shard_of(num_batches: int, shard: tuple[tf.Tensor, int]) -> tuple[tf.Tensor, tf.Tensor]:
    """The numbers of the first batch of a shard (index, count) and of the first one after it."""
    index, count = shard
    return index * num_batches // count, (index + 1) * num_batches // count


def reads_shards(source: DataSource) -> bool:
    """Whether a source reads a shard of its evaluation examples without the others."""
    return "shard" in inspect.signature(source.evaluation).parameters


def evaluation_batches(
    source: DataSource, batch_size: int, shard: tuple[tf.Tensor, int] | None = None
) -> tf.data.Dataset:
    """The evaluation examples, or those of a shard (index, count).

    Raises:
      ConfigError: the source returned no dataset.
    """
    if shard is not None and reads_shards(source):
        own = source.evaluation(batch_size=batch_size, shard=shard)  # type: ignore[call-arg]
        return checked_dataset(own, source, "evaluation")
    whole = checked_dataset(source.evaluation(batch_size=batch_size), source, "evaluation")
    if shard is None:
        return whole
    first, last = shard_of(-(-source.num_eval_examples // batch_size), shard)
    # The last shard takes one batch more: a source that yields more than it reports is found by the count.
    return whole.skip(first).take(last - first + tf.cast(shard[0] == shard[1] - 1, tf.int64))


# The number of a batch, int64, and those of its examples, int64 of shape (n,); read, those and the examples themselves.
Batches: TypeAlias = tf.data.Dataset


class ByNumber(abc.ABC):
    """Base of sources whose training examples can be read by their numbers, from 0 to num_train_examples - 1.

    This makes them suitable for `data.visitation=once`: each step receives the number of the batch to read.
    """

    num_train_examples: int

    def block(self, batch_size: int) -> int:
        """How many examples with consecutive numbers are best read together, for batches of that size."""
        return 1

    @abc.abstractmethod
    def read(self, batches: Batches) -> Batches:
        """Reads examples, without Python: the pipeline runs on workers.

        Args:
          batches: (number, numbers) of each batch.

        Returns:
          (number, numbers, ({name: (n, *shape)}, label)) of each, in the same order; weights may follow the label.
        """

    def order(self, batch_size: int, *, whole_passes: bool = False) -> Order:
        return Order(self.num_train_examples, batch_size, self.block(batch_size), whole_passes)

    def batches(self, numbers: tf.data.Dataset, order: Order, seed: tf.Tensor) -> Batches:
        """The batches with these numbers, as `read` gives them."""
        return self.read(numbers.map(lambda number: (number, order.numbers(number, seed))))

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        read = self.batches(tf.data.Dataset.counter(), self.order(batch_size), seed)
        return read.map(lambda number, numbers, examples: examples)


# Features by name, label and, where examples have them, weights; examples along the first axis. Labels and weights may
# be dicts by output.
Arrays: TypeAlias = tuple[Any, ...]


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
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.features = features
        self.task: Task = task
        self.num_classes = num_classes
        self.facts = facts or {}
        self._train, self._evaluation = train, evaluation
        self.num_train_examples: int = len(tf.nest.flatten(train[1])[0])
        self.num_eval_examples: int = len(tf.nest.flatten(evaluation[1])[0])

    def read(self, batches: Batches) -> Batches:
        gathered = _gathering(self._train)
        return batches.map(lambda number, numbers: (number, numbers, gathered(numbers)))

    def evaluation(self, *, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        first: tf.Tensor | int = 0
        last: tf.Tensor | int = self.num_eval_examples
        if shard is not None:
            first, last = (batch * batch_size for batch in shard_of(-(-last // batch_size), shard))
            last = tf.minimum(last, self.num_eval_examples)
        return tf.data.Dataset.range(first, last).batch(batch_size).map(_gathering(self._evaluation))


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
